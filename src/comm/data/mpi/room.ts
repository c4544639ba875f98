/**
 * The room that MPI needs in the folder of shared memory. MPICH and its kin map files there in `MPI_Init` and do not look whether there is
 * room: a process of theirs that gets none ends by a bus error, without a word of it.
 *
 * @module
 */
import { FileError } from "../../../errors.ts";
import type { Posix } from "../../../ffi/posix.ts";
import { countOf, formatBytes } from "../../../words.ts";
import type { OpenMpiLibrary } from "./library.ts";

/** The folder, which MPI's libraries do not let anybody choose. */
const SHARED_MEMORY = "/dev/shm";

/**
 * Bytes for the ranks of a host, and for each of them. Ranks of MPICH 5.0.2 take 5.2 MiB each: 2, 4, 8 and 16 of them ended by bus errors
 * with 16, 16, 20 and 64 MiB of room. Intel MPI 2021.18 takes less.
 */
const [HOST_BYTES, RANK_BYTES] = [8 * 2 ** 20, 6 * 2 ** 20] as const;

/**
 * Refuses to begin where MPI would end this process.
 *
 * @param ranks number of ranks on this host
 * @throws {FileError} naming the room that there is and that is needed
 */
export function requireRoom(
  posix: Posix,
  { abi, version }: Pick<OpenMpiLibrary, "abi" | "version">,
  ranks: number,
): void {
  if (abi === "openmpi") return; // it goes without shared memory then
  const { freeBytes } = posix.spaceAt(SHARED_MEMORY);
  const needed = HOST_BYTES + ranks * RANK_BYTES;
  if (freeBytes >= needed) return;
  const room = `${formatBytes(freeBytes)} are free, and ${countOf(ranks, "rank")} of ${version} on this host take ${
    formatBytes(needed)
  }`;
  const remedy =
    "Remove files that ended runs have left there, or make it larger: 'mount -o remount,size=1g /dev/shm', in a container " +
    "'--shm-size=1g'";
  throw new FileError(SHARED_MEMORY, "share memory in", `${room}. ${remedy}`, "ENOSPC");
}
