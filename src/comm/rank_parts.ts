/**
 * Small memory that the ranks of a group share beside their control blocks: each rank writes its own part.
 *
 * @module
 */

import type { ControlPlane } from "./control_plane.ts";

/** Makes the parts of a group. Collective over it. @param owner their purpose, for messages */
export type ShareParts = (control: ControlPlane, byteLength: number, owner: string) => RankParts;

export interface RankParts extends Disposable {
  /** The part of each rank, zeros at first. The copy of a followed rank's part shows, after a while, what that rank published. */
  readonly parts: readonly Uint8Array[];
  /** Shows the other ranks what this rank has written. Never waits. */
  publish(): void;
  /** Starts to receive what `rank` publishes; without effect where all ranks share one memory. */
  follow(rank: number): void;
  /**
   * Calls `look` in this rank's waits, when copies of others' parts may have changed; an error of `look` ends the wait.
   * Never called where all ranks share one memory: there the last writer sees what all others wrote.
   */
  onChange(look: () => void): void;
}
