/**
 * The data plane between Workers of one process. Each rank's device memory is private, so all data is copied into shared
 * slots and out of them. No FFI: it works wherever Workers do.
 *
 * @module
 */
import type { Device } from "../../device/device.ts";
import { InternalError } from "../../errors.ts";
import type { ControlOptions, ControlPlane } from "../control_plane.ts";
import type { DataPlane } from "../data_plane.ts";
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

/** Divides the Workers' shared memory into slots of `slotBytes`, and opens the data plane over them. */
function openData(control: ControlPlane, device: Device, slotBytes: number, options: StagingOptions): DataPlane {
  if (!(control instanceof WorkersControlPlane)) throw new InternalError("loopback over another control plane");
  const { blocks, rank, size } = control;
  const head = headBytes(size);
  const slots = blocks.map((block) => block.subarray(head, head + slotBytes));
  const scratch = new Scratch(device.allocator);
  return new StagedDataPlane({
    ...{ kind: "loopback", stagingBytes: 0, control, device, resources: scratch },
    words: blocks.map(({ buffer, byteOffset }) => new Int32Array(buffer, byteOffset, stagingWords(size))),
    staging: copiedStaging(device, slots, rank, scratch),
    layout: divideSlot(slotBytes, size, options),
    split: (part) => openData(part, device, slotBytes, options),
  });
}

/**
 * Opens this rank's group of a loopback world.
 *
 * @param world made by {@link createLoopbackWorld}, received by this thread
 * @param rank rank of this thread; each one once
 */
export function openLoopback(
  world: LoopbackWorld,
  rank: number,
  device: Device,
  options: ControlOptions & StagingOptions = {},
): ProcessGroup {
  const control = joinWorkers(world, rank, options);
  const slotBytes = world.dataBytes - headBytes(world.size);
  try {
    return new ProcessGroup(control, openData(control, device, slotBytes, options));
  } catch (error) {
    control.dispose();
    throw error;
  }
}
