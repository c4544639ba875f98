/**
 * The data plane between processes of one host. Shards lie in shared files, where peers read them; all other data goes
 * through a staging file. Both are mapped into each rank's device memory, so kernels work on them in place.
 *
 * @module
 */
import type { Device } from "../../device/device.ts";
import { openPosix, type Posix } from "../../ffi/posix.ts";
import { requireSharedMemory } from "../../runtime/processes.ts";
import type { RunFiles } from "../control/run_files.ts";
import { shareFile } from "../control/shared_files.ts";
import type { ShmControlPlane } from "../control/shm.ts";
import { joinShm, type ShmJoinOptions } from "../control/shm_join.ts";
import type { ControlPlane } from "../control_plane.ts";
import type { DataPlane, Window } from "../data_plane.ts";
import { ProcessGroup } from "../process_group.ts";
import { DevicePages } from "./device_pages.ts";
import { openShmWindow } from "./shm_window.ts";
import { divideSlot, slotBytesOf, type StagingOptions } from "./sizes.ts";
import { SPARE, StagedDataPlane, stagingWords } from "./staged.ts";
import { copiedStaging, mappedStaging, Scratch } from "./staging.ts";

/** Options of a process that joins its host's ranks and shares memory with them. */
export interface ShmOptions extends ShmJoinOptions, StagingOptions {
  /** `copy` copies between shared files and device memory, as happens where shared files cannot be mapped there; default `auto`. */
  readonly mapping?: "auto" | "copy" | undefined;
}

/** State that the data planes of one process share. */
export interface SharedStaging {
  readonly files: RunFiles;
  readonly pages: DevicePages;
  readonly slotBytes: number;
  readonly options: Pick<ShmOptions, "report" | keyof StagingOptions>;
  /** Reason why shared files are not mapped over this rank's device memory: empty if they are, `undefined` before the test. */
  readonly obstacle: string | undefined;
}

/** Makes the staging file of a group and maps it. Collective over the group. */
export function openStaging(control: ControlPlane, shared: SharedStaging): StagedDataPlane {
  const { files, pages, slotBytes, options } = shared;
  const { rank, size } = control;
  const { posix, device } = pages;
  const headWords = stagingWords(size);
  const headBytes = pages.roundUp(size * headWords * 4);
  const slotsBytes = pages.roundUp(size * slotBytes);
  const layout = divideSlot(slotBytes, size, options);
  const request = { byteLength: headBytes + slotsBytes, owner: `the staging of ${size} ranks`, leader: 0 };
  const { value, kept, notes } = shareFile(control, files, request, (descriptor, address, stack) => {
    const view = posix.provider.viewOf(address, headBytes + slotsBytes);
    const words = Array.from({ length: size }, (_, r) => new Int32Array(view, r * headWords * 4, headWords));
    const obstacle = shared.obstacle ?? pages.selfTest(descriptor, view, rank * headWords + SPARE);
    if (size > 1 && obstacle === "") {
      const begin = pages.mapIn(descriptor, slotsBytes, { owner: "staging", kind: "staging" }, headBytes, stack);
      return { words, obstacle, staging: mappedStaging(device, begin, slotBytes, rank) };
    }
    const slots = words.map((_, r) => new Uint8Array(view, headBytes + r * slotBytes, slotBytes));
    return { words, obstacle, staging: copiedStaging(device, slots, rank, stack.use(new Scratch(device.allocator))) };
  }, ({ obstacle }) => obstacle);
  const { obstacle, words, staging } = value;
  if (shared.obstacle === undefined && obstacle !== "") {
    options.report?.(`Rank ${rank} copies through shared memory (slower): it cannot map it: ${obstacle}`);
  }
  const openMapped = (byteLengths: readonly number[], unit: string): Window =>
    openShmWindow(control, files, pages, byteLengths, unit);
  return new StagedDataPlane({
    ...{ kind: "shm", control, device, words, staging, layout, resources: kept },
    stagingBytes: size > 1 && obstacle === "" ? slotsBytes : 0,
    // Shards lie in shared files of their own if every rank can map them.
    openMapped: size > 1 && notes.every((note) => note === "") ? openMapped : undefined,
    split: (part) => openStaging(part, { ...shared, obstacle }),
  });
}

/**
 * Joins the other ranks of this host.
 *
 * @param device the shared files are mapped into its memory
 * @throws {RendezvousError} if a rank does not start in time, is started twice, or disagrees about the world's size
 * @throws {OutOfMemoryError} if shared memory is too small
 * @throws {UnsupportedError} where processes cannot share memory: anywhere but on Linux
 * @example
 * ```ts ignore
 * using group = await openShm(device, { rank: 0, worldSize: 2, run: "127.0.0.1:29500" });
 * ```
 */
export async function openShm(device: Device, options: ShmOptions): Promise<ProcessGroup> {
  requireSharedMemory();
  const posix = await openPosix();
  const control = await joinShm(posix, options);
  try {
    return new ProcessGroup(control, openShmData(control, posix, device, options));
  } catch (error) {
    control.dispose();
    throw error;
  }
}

/** Opens the data plane of ranks that have joined. Collective. */
export function openShmData(control: ShmControlPlane, posix: Posix, device: Device, options: ShmOptions): DataPlane {
  const pages = new DevicePages(device, posix);
  const slotBytes = slotBytesOf("shm", control.size, options);
  const obstacle = options.mapping === "copy" ? "copying was asked for" : undefined;
  return openStaging(control, { files: control.files, pages, slotBytes, options, obstacle });
}
