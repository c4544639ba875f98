/**
 * The hosts of ranks that MPI joins: ranks are on one host if they see each other's lock files, and so can share memory. Two containers
 * of one host may not.
 *
 * @module
 */
import type { Posix } from "../../../ffi/posix.ts";
import { sha256 } from "../../../runtime/checksum.ts";
import { hostName } from "../../../runtime/processes.ts";
import { RunFiles } from "../../control/run_files.ts";
import type { ControlPlane } from "../../control_plane.ts";

/** The directory of shared files, unless another one is named. */
const MEMORY_DIRECTORY = "/dev/shm";

/** The hosts of a world. */
export interface HostRanks extends Disposable {
  /** The host of each rank, from 0. Hosts may have unequal numbers of ranks, in any order. */
  readonly hostOf: readonly number[];
  /** True if this host has fewer cores than ranks, so that a rank that waits leaves its core to the others. */
  readonly sharesCores: boolean;
  /** Shared files of this host's ranks. */
  readonly files: RunFiles;
}

/**
 * Finds the hosts of all ranks, and locks this rank's file. Collective.
 *
 * @param run text that only the ranks of this run have
 */
export async function findHosts(
  control: ControlPlane,
  posix: Posix,
  run: string,
  directory: string = MEMORY_DIRECTORY,
): Promise<HostRanks> {
  const { rank } = control;
  const files = new RunFiles(posix, directory, sha256([run]).slice(0, 16));
  const lock = await files.claim(rank);
  try {
    const names = exchangeTexts(control, hostName() ?? "");
    const sees = (peer: number): boolean => peer === rank || (names[peer] === names[rank] && files.isHeld(peer));
    const first = Array.from({ length: rank + 1 }, (_, peer) => peer).find(sees) ?? rank;
    const firsts = exchangeTexts(control, String(first)).map(Number);
    if (first === rank) files.sweep();
    // No rank makes a file before a sweep has ended.
    const cores = control.exchange(new Uint8Array(Uint16Array.from(posix.affinity()).buffer));
    const starts = [...new Set(firsts)];
    const hostOf = firsts.map((start) => starts.indexOf(start));
    // Containers of a host may not share memory, but they share its cores. Without its name, which Deno may not read, a host is
    // known by its files alone.
    const byName = names[rank] !== "";
    const isNear = (peer: number): boolean => byName ? names[peer] === names[rank] : hostOf[peer] === hostOf[rank];
    const near = cores.filter((_, peer) => isNear(peer)).map((bytes) => [...new Uint16Array(bytes.slice().buffer)]);
    // Launchers bind ranks to cores, so the ranks of a host may have different ones.
    const sharesCores = new Set(near.flat()).size < near.length;
    return { hostOf, sharesCores, files, [Symbol.dispose]: () => files.release(rank, lock) };
  } catch (error) {
    files.release(rank, lock);
    throw error;
  }
}

function exchangeTexts(control: ControlPlane, own: string): readonly string[] {
  return control.exchange(new TextEncoder().encode(own)).map((bytes) => new TextDecoder().decode(bytes));
}
