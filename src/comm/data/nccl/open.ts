/**
 * Joins ranks with a card each by NCCL, or decides how ranks that share a card exchange what they have.
 *
 * @module
 */
import { at } from "../../../at.ts";
import { CudaDevice } from "../../../device/cuda/device.ts";
import type { Device } from "../../../device/device.ts";
import { ArgumentError } from "../../../errors.ts";
import { NCCL } from "../../../ffi/bindings/nccl.ts";
import { openLibrary } from "../../../ffi/mod.ts";
import { openPosix } from "../../../ffi/posix.ts";
import { processEnvironment } from "../../../runtime/env.ts";
import { requireSharedMemory } from "../../../runtime/processes.ts";
import { ShmControlPlane } from "../../control/shm.ts";
import { joinShm } from "../../control/shm_join.ts";
import type { DataPlane } from "../../data_plane.ts";
import { type HostsPlace, joinHosts } from "../../hosts/join.ts";
import type { HostsControlPlane } from "../../hosts/plane.ts";
import { ProcessGroup } from "../../process_group.ts";
import { exchangeOutcomes } from "../../together.ts";
import { openShmData, type ShmOptions } from "../shm.ts";
import { Communicators } from "./communicator.ts";
import { NcclDataPlane } from "./plane.ts";
import { describeGathers, gathersBy, isWithoutWindows, joinsOnOneCard, type Nccl, versionOf } from "./version.ts";

/** Options of ranks that join on cards. */
export interface NcclOptions extends ShmOptions {
  /** Meeting point of several hosts; undefined if all ranks are on this host. */
  readonly hosts?: HostsPlace | undefined;
  /** True if ranks of one host that share a card, which NCCL may refuse, go through host memory instead. @default false */
  readonly mayStage?: boolean | undefined;
}

/**
 * Joins the other ranks of this host, or of several, each with a card of its own. Ranks that share a card are joined by NCCL
 * 2.30 and newer if NCCL_MULTI_RANK_GPU_ENABLE is 1, else as `mayStage` says; the way taken is reported.
 *
 * @param device a CUDA device
 * @throws {ArgumentError} if the device is not CUDA
 * @throws {LibraryNotFoundError} if NCCL is not found
 * @throws {RendezvousError} if a rank does not start in time, is started twice, or disagrees about the world's size
 * @throws {CollectiveError} if two ranks share a card, and nothing joins them
 * @example
 * ```ts ignore
 * using group = await openNccl(device, { rank: 0, worldSize: 2, run: "127.0.0.1:29500" });
 * ```
 */
export async function openNccl(device: Device, options: NcclOptions): Promise<ProcessGroup> {
  if (!(device instanceof CudaDevice)) {
    throw new ArgumentError(
      `Backend 'nccl' moves memory of NVIDIA's cards, but the device is ${device.name}: use 'shm'`,
    );
  }
  requireSharedMemory();
  const environment = processEnvironment();
  const [loaded] = await Promise.allSettled([openLibrary(NCCL, { provider: device.provider, environment })]);
  const { hosts, rank, mayStage = false } = options;
  const say = (text: string): void => rank === 0 ? options.report?.(text) : undefined;
  const posix = await openPosix();
  const control = hosts === undefined ? await joinShm(posix, options) : await joinHosts({ ...options, ...hosts });
  try {
    const host = hosts === undefined ? "" : `host ${Math.floor(rank / hosts.localWorldSize)}, `;
    const isSwitchedOff = isWithoutWindows(environment);
    // If one rank lacks NCCL, all ranks fail instead of waiting for it.
    const { value: nccl, notes } = exchangeOutcomes(control, loaded, (found) => {
      const version = versionOf(found);
      const joins = environment.integer("NCCL_MULTI_RANK_GPU_ENABLE") === 1 && joinsOnOneCard(version);
      const registers = gathersBy(version) !== "kernels" && !isSwitchedOff;
      return JSON.stringify([`${host}${device.busId}`, joins, registers]);
    });
    const cards = notes.map((note): readonly [card: string, joins: boolean, registers: boolean] => JSON.parse(note));
    const shared = sharedCard(cards.map(([card]) => card));
    const join = (): ProcessGroup => {
      if (control.size > 1) say(describeGathers(versionOf(nccl), isSwitchedOff));
      const registersMemory = cards.every(([, , registers]) => registers);
      return new ProcessGroup(control, openData(control, nccl, device, registersMemory));
    };
    if (shared === undefined) return join();
    if (cards.every(([, joins]) => joins)) {
      say(`${shared}: NCCL joins them there, as NCCL_MULTI_RANK_GPU_ENABLE is 1`);
      return join();
    }
    if (!(control instanceof ShmControlPlane) || !mayStage) {
      throw control.failure(
        `${shared}: start at most as many ranks on a host as it has cards, each with LOCAL_RANK or a CUDA_VISIBLE_DEVICES of its own`,
      );
    }
    nccl.close();
    say(
      `${shared}: what they exchange goes through memory of the host. NCCL 2.30 and newer joins them on the card where ` +
        "NCCL_MULTI_RANK_GPU_ENABLE is 1 for all ranks",
    );
    return new ProcessGroup(control, openShmData(control, posix, device, { ...options, mapping: "copy" }));
  } catch (error) {
    control.dispose();
    throw error;
  }
}

function openData(
  control: ShmControlPlane | HostsControlPlane,
  nccl: Nccl,
  device: CudaDevice,
  registersMemory: boolean,
): DataPlane {
  const all = new Communicators(nccl, device, control);
  try {
    return new NcclDataPlane(device, all.join(), { share: control.share, registersMemory }, all);
  } catch (error) {
    all[Symbol.dispose]();
    throw error;
  }
}

/** The ranks that share a card, in words; undefined if each has its own. */
function sharedCard(cards: readonly string[]): string | undefined {
  for (const [card, ranks] of Map.groupBy(cards.keys(), (rank) => at(cards, rank, "card of rank"))) {
    if (ranks.length > 1) return `ranks ${ranks.join(", ")} have one card (${card})`;
  }
  return undefined;
}
