/**
 * The data plane between Workers of one process: a rank's device memory is private, so everything is copied into shared
 * slots and out of them. No FFI: it runs wherever Workers do.
 *
 * @module
 */
import type { Device } from "../../device/device.ts";
import { InternalError } from "../../errors.ts";
import type { ControlOptions, ControlPlane } from "../control_plane.ts";
import { createWorkersWorld, joinWorkers, type LoopbackWorld, WorkersControlPlane } from "../control/workers.ts";
import { ProcessGroup } from "../process_group.ts";
import { StagedDataPlane, stagingWords } from "./staged.ts";
import { ALIGNMENT, divideSlot, slotBytesOf, type StagingOptions } from "./sizes.ts";
import { copiedStaging, Scratch } from "./staging.ts";

/**
 * Makes the shared memory of `size` ranks.
 *
 * @throws {ArgumentError} if `size` is no positive integer up to 256
 * @example
 * ```ts ignore
 * const world = createLoopbackWorld(2);
 * worker.postMessage({ world, rank: 1 }); // in the Worker: openLoopback(world, 1, device)
 * ```
 */
export function createLoopbackWorld(size: number, options: StagingOptions = {}): LoopbackWorld {
  return createWorkersWorld(size, headBytes(size) + slotBytesOf("loopback", size, options));
}

/** Bytes of a rank's words, before its slot. */
function headBytes(size: number): number {
  return Math.ceil(stagingWords(size) * 4 / ALIGNMENT) * ALIGNMENT;
}

/** Slots in the Workers' shared memory. */
export class LoopbackDataPlane extends StagedDataPlane {
  readonly kind = "loopback";
  readonly stagingBytes = 0;
  readonly #options: StagingOptions;

  /** @param slotBytes bytes of each rank's slot */
  constructor(control: WorkersControlPlane, device: Device, slotBytes: number, options: StagingOptions) {
    const { blocks, rank, size } = control;
    const head = headBytes(size);
    const words = blocks.map(({ buffer, byteOffset }) => new Int32Array(buffer, byteOffset, stagingWords(size)));
    const slots = blocks.map((block) => block.subarray(head, head + slotBytes));
    const scratch = new Scratch(device.allocator);
    const staging = copiedStaging(device, slots, rank, scratch);
    super({ control, device, words, staging, layout: divideSlot(slotBytes, size, options), resources: scratch });
    this.#options = options;
  }

  split(control: ControlPlane): LoopbackDataPlane {
    if (!(control instanceof WorkersControlPlane)) throw new InternalError("loopback over another control plane");
    return new LoopbackDataPlane(control, this.device, this.layout.slotBytes, this.#options);
  }
}

/**
 * This rank's end of a loopback world.
 *
 * @param world what {@link createLoopbackWorld} made, received by this thread
 * @param rank which rank this thread is; each one once
 */
export function openLoopback(
  world: LoopbackWorld,
  rank: number,
  device: Device,
  options: ControlOptions & StagingOptions = {},
): ProcessGroup {
  const control = joinWorkers(world, rank, options);
  const slotBytes = world.dataBytes - headBytes(world.size);
  return new ProcessGroup(control, new LoopbackDataPlane(control, device, slotBytes, options));
}
