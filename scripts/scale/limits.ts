/**
 * Limits of a run by the number of its ranks, the one that is met first at the front.
 *
 * @module
 */
import { BLOCK_BYTES } from "../../src/comm/control/shared.ts";
import { chunkBytesOf } from "../../src/comm/data/mpi/memory.ts";
import { MAX_RANKS } from "../../src/comm/hosts/join.ts";
import { MAX_BYTES } from "../../src/comm/hosts/store.ts";
import { StoredGroup } from "../../src/comm/hosts/stored_group.ts";

/** A limit. */
export interface Limit {
  readonly what: string;
  /** Largest number of ranks. */
  readonly ranks: number;
  readonly remedy: string;
}

/** Groups of all ranks that a run with a mesh of two axes has: the world, and each rank in one of each axis. */
const GROUPS = 3;
/** Bytes that the comparison of messages over NCCL keeps of each pair of ranks: 64 lengths each way. */
const LENGTH_BYTES = 2 * 64 * 16;

/** Limits that ranks meet below `target`, and the first above it. */
export function limitsOf(target: number, descriptors: number): readonly Limit[] {
  const bytesOfRank = StoredGroup.byteLengthOf({ worldRanks: [0], blockBytes: BLOCK_BYTES, headBytes: 0 });
  let chunk = target;
  while (chunkBytesOf(chunk, {}) < 4096) chunk--;
  const limits: readonly Limit[] = [
    {
      what: `ulimit -n of ${descriptors} for the process of rank 0, which has a stream of each rank`,
      ranks: descriptors - 64,
      remedy: "raise it for rank 0's host",
    },
    {
      what: `the store's ${MAX_BYTES} bytes, with the groups of a mesh of two axes`,
      ranks: Math.floor(MAX_BYTES / (GROUPS * bytesOfRank)),
      remedy: "raise MAX_BYTES in src/comm/hosts/store.ts",
    },
    {
      what: "the store's bytes, with lengths of messages between cards (NCCL)",
      ranks: Math.floor(Math.sqrt(MAX_BYTES / LENGTH_BYTES)),
      remedy: "keep lengths for pairs that have passed messages, as MPI's plane does",
    },
    {
      what: "the number of ranks that a store joins",
      ranks: MAX_RANKS,
      remedy: "raise MAX_RANKS in src/comm/hosts/join.ts",
    },
    {
      what: "chunks of 4 KiB in a reduction over MPI within its staging memory",
      ranks: chunk,
      remedy: "give stagingBytes, or sum within hosts first",
    },
  ];
  return [...limits].sort((a, b) => a.ranks - b.ranks);
}
