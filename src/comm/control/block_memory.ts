/**
 * The memory of a control plane's blocks, as each kind of plane provides it.
 *
 * @module
 */
import type { ControlPlane } from "../control_plane.ts";

/** Memory of a group's blocks, with sleep and wake. */
export interface BlockMemory {
  /** Shared bytes of a rank, `BLOCK_BYTES` of `shared.ts`, zeros at first; the same memory each time. */
  block(rank: number): Uint8Array;
  /** Sleeps while a word of a rank's block holds `expected`, at most `timeoutMs`; may wake earlier. */
  sleep(rank: number, word: number, expected: number, timeoutMs: number): void;
  /** Wakes all sleepers of a word. */
  wake(rank: number, word: number): void;
  /** Frees what this group alone holds, when this rank leaves it. */
  leave(): void;
  /** Exchange and refresh where ranks have copies of each other's blocks; undefined if all ranks share one memory. */
  readonly followed?: FollowedBlocks;
}

/** Copies of blocks. A rank receives its neighbours' blocks without a request, and all other blocks when it asks. */
export interface FollowedBlocks {
  /** Neighbours, whose copies follow what their owners publish. */
  readonly ranks: readonly number[];
  /**
   * Brings the copies of all blocks, but not their mailboxes, up to date. Asks again for a short time until `isEnough()`, as
   * ranks may publish their newest calls a little later.
   *
   * @returns false if the store did not answer
   */
  refresh(isEnough?: () => boolean): boolean;
  /** Publishes an announced call, together with others where they come fast. */
  announced(): void;
  /** Exchanges bytes between all ranks. */
  exchange(control: ControlPlane, bytes: Uint8Array): readonly Uint8Array[];
  /** Ranks that have begun fewer exchanges than this rank, as far as it knows. */
  behind(): readonly number[];
}
