/**
 * The control plane between processes of one host, over shared files. Blocks are native mappings, ranks sleep
 * by futex, and a rank whose lock file is free is dead. Linux; needs FFI to the C library.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { Posix } from "../../ffi/posix.ts";
import type { NativeAddress } from "../../ffi/types.ts";
import type { Place } from "../control_plane.ts";
import type { ShareParts } from "../rank_parts.ts";
import type { BlockMemory } from "./block_memory.ts";
import type { RunFiles } from "./run_files.ts";
import { shareFile, shareInFiles } from "./shared_files.ts";
import { BLOCK_BYTES, SharedControlPlane, type World } from "./shared.ts";

/**
 * Blocks of all ranks, in rank order, in a native mapping. The mapping is never undone: it is small, and a late abort() must
 * find it.
 */
export function nativeBlocks(
  posix: Posix,
  address: NativeAddress,
  size: number,
  leave: () => void = () => {},
): BlockMemory {
  const bytes = new Uint8Array(posix.provider.viewOf(address, size * BLOCK_BYTES));
  const addressOf = (rank: number, word: number): NativeAddress =>
    posix.provider.offset(address, rank * BLOCK_BYTES + word * 4);
  return {
    block: (rank) => bytes.subarray(rank * BLOCK_BYTES, (rank + 1) * BLOCK_BYTES),
    sleep: (rank, word, expected, timeoutMs) => void posix.futexWait(addressOf(rank, word), expected, timeoutMs),
    wake: (rank, word) => void posix.futexWake(addressOf(rank, word), 0x7fffffff),
    leave,
  };
}

/** The control plane of ranks that are processes of one host. */
export class ShmControlPlane extends SharedControlPlane {
  readonly files: RunFiles;
  readonly share: ShareParts;

  constructor(files: RunFiles, place: Place, memory: BlockMemory, world: World, timeoutSeconds?: number) {
    super(place, memory, world, timeoutSeconds);
    this.files = files;
    this.share = shareInFiles(files);
  }

  split(ranks: readonly number[], name: string): ShmControlPlane {
    const { posix } = this.files;
    this.agreeOnSplit(ranks);
    const byteLength = ranks.length * BLOCK_BYTES;
    const request = { byteLength, owner: `group '${name}'`, leader: at(ranks, 0, "member") };
    const open = (_: number, address: NativeAddress): BlockMemory => nativeBlocks(posix, address, ranks.length);
    const { value: memory } = shareFile(this, this.files, request, open);
    return new ShmControlPlane(this.files, this.placeIn(ranks, name), memory, this.world, this.timeoutSeconds);
  }
}
