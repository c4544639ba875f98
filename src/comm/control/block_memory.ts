/**
 * What a control plane over blocks needs of the memory that they lie in.
 *
 * @module
 */
import type { ControlPlane } from "../control_plane.ts";

/** The blocks of a group. */
export interface BlockMemory {
  /** `BLOCK_BYTES` of `shared.ts` shared bytes of each rank, zero at first. */
  readonly blocks: readonly Uint8Array[];
  /** Sleeps while a word of a rank's block holds `expected`, at most `timeoutMs`; may wake for no reason. */
  sleep(rank: number, word: number, expected: number, timeoutMs: number): void;
  /** Wakes all that sleep on that word. */
  wake(rank: number, word: number): void;
  /** Gives up what the group alone has, when this rank leaves it. */
  leave(): void;
  /** How ranks exchange bytes, and how the present state of all blocks is had. Default: all blocks are the same memory for all. */
  readonly followed?: FollowedBlocks;
}

/** Blocks of which a rank is sent only those of its neighbours, unless it asks. */
export interface FollowedBlocks {
  /** Neighbours: their blocks follow what their owners have published. */
  readonly ranks: readonly number[];
  /**
   * Brings the blocks of all ranks but their mailboxes up to date; whether that could be done. Does it again, not for long, until
   * `isEnough()`, as ranks may publish their newest calls a little later.
   */
  refresh(isEnough?: () => boolean): boolean;
  /** Publishes a call now or with a later one, as soon as may be without doing it for each call. */
  announced(): void;
  /** Exchanges bytes between all ranks. */
  exchange(control: ControlPlane, bytes: Uint8Array): readonly Uint8Array[];
  /** Ranks that have not come to this rank's newest exchange, as far as is known. */
  behind(): readonly number[];
}
