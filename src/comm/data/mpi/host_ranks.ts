/**
 * The hosts of ranks that MPI joins: ranks are on one host if they see each other's lock files, and so can share memory. Two containers
 * of one host may not.
 *
 * @module
 */
import { at } from "../../../at.ts";
import type { Posix } from "../../../ffi/posix.ts";
import { sha256 } from "../../../runtime/checksum.ts";
import { hostName } from "../../../runtime/processes.ts";
import { countOf } from "../../../words.ts";
import { RunFiles } from "../../control/run_files.ts";
import type { ControlPlane } from "../../control_plane.ts";

/** The directory of shared files, unless another one is named. */
const MEMORY_DIRECTORY = "/dev/shm";

/** The hosts of a world. */
export interface HostRanks extends Disposable {
  /** The host of each rank, from 0. */
  readonly hostOf: readonly number[];
  /** Shared files of this host's ranks. */
  readonly files: RunFiles;
}

/**
 * Finds the hosts of all ranks, and locks this rank's file. Collective.
 *
 * @param run text that only the ranks of this run have
 * @throws {CollectiveError} if ranks are not numbered host by host, or hosts have different numbers of ranks
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
    requireHostByHost(control, firsts, names);
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

/** Checks that the ranks of each host follow each other, as sums go on from host to host, and that hosts have as many. */
function requireHostByHost(control: ControlPlane, firsts: readonly number[], names: readonly string[]): void {
  const remedy =
    "number ranks host by host, as many on each, such as by 'mpirun --map-by ppr:4:node' or 'mpiexec -ppn 4'";
  const nameOf = (rank: number): string => at(names, rank, "host of rank");
  for (const [rank, first] of firsts.entries()) {
    if (first === rank || firsts[rank - 1] === first) continue;
    const [own, before] = [nameOf(rank), nameOf(rank - 1)];
    throw control.failure(
      `rank ${rank} is on host '${own}' with rank ${first}, and rank ${rank - 1} is on host '${before}': ${remedy}`,
    );
  }
  const counts = [...Map.groupBy(firsts, (first) => first)].map(([first, ranks]) => [first, ranks.length] as const);
  const [[, most] = [0, 0]] = counts;
  const other = counts.find(([, count]) => count !== most);
  if (other === undefined) return;
  const [first, count] = other;
  throw control.failure(
    `host '${nameOf(0)}' has ${countOf(most, "rank")}, but host '${nameOf(first)}' ${count}: ${remedy}`,
  );
}

function exchangeTexts(control: ControlPlane, own: string): readonly string[] {
  return control.exchange(new TextEncoder().encode(own)).map((bytes) => new TextDecoder().decode(bytes));
}
