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
    control.exchange(new Uint8Array()); // no rank makes a file before a sweep has ended
    const starts = [...new Set(firsts)];
    const hostOf = firsts.map((start) => starts.indexOf(start));
    return { hostOf, files, [Symbol.dispose]: () => files.release(rank, lock) };
  } catch (error) {
    files.release(rank, lock);
    throw error;
  }
}

function exchangeTexts(control: ControlPlane, own: string): readonly string[] {
  return control.exchange(new TextEncoder().encode(own)).map((bytes) => new TextDecoder().decode(bytes));
}
