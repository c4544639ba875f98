/**
 * The data plane between Workers of one process: a rank's device memory is private, so everything is copied into shared
 * slots and out of them. No FFI: it runs wherever Workers do.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { Device } from "../../device/device.ts";
import { InternalError } from "../../errors.ts";
import type { ControlOptions, ControlPlane } from "../control_plane.ts";
import { createWorkersWorld, joinWorkers, type LoopbackWorld, WorkersControlPlane } from "../control/workers.ts";
import { ProcessGroup } from "../process_group.ts";
import { StagedDataPlane, stagingWords } from "./staged.ts";
import { ALIGNMENT, CopiedStaging, divideSlot, type StagingOptions } from "./staging.ts";

/** Staging bytes of all ranks together. */
const STAGING_BYTES: number = 8 * 2 ** 20;

/** Sizes of a loopback world. */
export interface LoopbackWorldOptions {
  /** Staging bytes of all ranks together; default 8 MiB. Groups that are split off have as much a rank. */
  readonly stagingBytes?: number | undefined;
}

/**
 * Makes the shared memory of `size` ranks.
 *
 * @throws {ArgumentError} if `size` is no positive integer up to 1024
 * @example
 * ```ts ignore
 * const world = createLoopbackWorld(2);
 * worker.postMessage({ world, rank: 1 }); // in the Worker: openLoopback(world, 1, device)
 * ```
 */
export function createLoopbackWorld(size: number, options: LoopbackWorldOptions = {}): LoopbackWorld {
  const { stagingBytes = STAGING_BYTES } = options;
  const slotBytes = size === 1 ? 0 : Math.floor(stagingBytes / size / ALIGNMENT) * ALIGNMENT;
  return createWorkersWorld(size, headBytes(size) + slotBytes);
}

/** Bytes of a rank's words, before its slot. */
function headBytes(size: number): number {
  return Math.ceil(stagingWords(size) * 4 / ALIGNMENT) * ALIGNMENT;
}

/** Slots in the Workers' shared memory. */
export class LoopbackDataPlane extends StagedDataPlane {
  readonly kind = "loopback";
  readonly stagingBytes = 0;
  readonly #chunkBytes: number | undefined;

  /** @param chunkBytes most bytes that go to one rank in one round */
  constructor(control: WorkersControlPlane, device: Device, chunkBytes: number | undefined) {
    const { blocks, size } = control;
    const words = blocks.map(({ buffer, byteOffset }) => new Int32Array(buffer, byteOffset, stagingWords(size)));
    const slots = blocks.map((block) => block.subarray(headBytes(size)));
    const layout = divideSlot(at(slots, control.rank, "slot of rank").length, size, chunkBytes);
    const staging = new CopiedStaging(device, slots, control.rank);
    super({ control, device, words, staging, layout, resources: staging });
    this.#chunkBytes = chunkBytes;
  }

  split(control: ControlPlane): LoopbackDataPlane {
    if (!(control instanceof WorkersControlPlane)) throw new InternalError("loopback over another control plane");
    return new LoopbackDataPlane(control, this.device, this.#chunkBytes);
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
  return new ProcessGroup(control, new LoopbackDataPlane(control, device, options.chunkBytes));
}
