/**
 * Signs of life on the streams between the store and ranks, by which a host that cannot be reached is found out within seconds.
 *
 * Note [Beats]
 * 1. Each end sends a frame `beat` each {@link BEAT_MS}: the store always, a rank while it waits.
 * 2. The kernel of the other host acknowledges its bytes, whatever the process there does. So a process that computes for long, or is
 *   stopped, counts as alive; so does a process that reads nothing, to which no more bytes are sent.
 * 3. The other host cannot be reached if bytes are under way at {@link MOST_SILENT} beats in a row, and nothing was acknowledged since
 *   the beat before. A process that was stopped itself thus counts one beat, however long it was stopped.
 * 4. Lost bytes are sent again each 0.2 s at first, so some nine times before a host counts as lost.
 *
 * @module
 */
import type { Sockets } from "../../ffi/sockets.ts";

/** Time between two beats. */
export const BEAT_MS = 1000;
/** Beats without an answer after which the other host cannot be reached: 3 to 4 s after it was cut off. */
const MOST_SILENT = 3;

/** What one end of a stream knows of the other host. */
export class Silence {
  #beats = 0;

  /** To be asked at each beat, before it is sent. @returns true if the other host cannot be reached any more */
  lasts(sockets: Sockets, descriptor: number): boolean {
    // Beats come late rather than early, so this is less than the time between two.
    this.#beats = sockets.isUnanswered(descriptor, 0.9 * BEAT_MS) ? this.#beats + 1 : 0;
    return this.#beats >= MOST_SILENT;
  }
}
