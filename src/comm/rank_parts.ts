/**
 * A little memory that the ranks of a group have in common beside their blocks: each writes its own part.
 *
 * @module
 */

import type { ControlPlane } from "./control_plane.ts";

/** Makes the parts of a group. Collective over it. @param owner what they are for, for messages */
export type ShareParts = (control: ControlPlane, byteLength: number, owner: string) => RankParts;

/** Parts of all ranks of a group. */
export interface RankParts extends Disposable {
  /** Zeros at first. A part that this rank follows shows what its owner has published, sooner or later. */
  readonly parts: readonly Uint8Array[];
  /** Lets the others see what this rank has written. Never waits. */
  publish(): void;
  /** From now on this rank sees what another one publishes; it need not be said where all see all. */
  follow(rank: number): void;
  /**
   * Calls `look` whenever this rank waits and others' parts may have changed, if that takes time; what it throws ends the
   * wait. Where others see at once what a rank writes, nothing is called: whoever writes last sees all.
   */
  onChange(look: () => void): void;
}
