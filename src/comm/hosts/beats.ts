/**
 * Signs of life on the streams between the store and ranks, by which a host that cannot be reached is found out within seconds.
 *
 * Note [Beats]
 * 1. Each end asks each {@link BEAT_MS} what its stream has done, the store always, a rank while it waits. If no bytes are under way,
 *   it sends a frame `beat`.
 * 2. The kernel of the other host acknowledges its bytes, whatever the process there does. So a process that computes for long, or is
 *   stopped, counts as alive; so does a process that reads nothing, to which no more bytes are sent.
 * 3. A beat is silent if bytes are under way that were sent before the beat before it, and nothing was acknowledged since then. After
 *   {@link MOST_SILENT} such beats in a row the other host cannot be reached. A process that was stopped itself, or was busy, thus counts
 *   one beat, however long that took; and what it sends right before a beat counts for nothing.
 * 4. Where packets are lost, the kernel sends the first unacknowledged one again each 0.2 s, some eight times before a host counts as
 *   lost. It does so while fewer than four packets are under way (TCP_THIN_LINEAR_TIMEOUTS), and waits twice as long each time where
 *   there are more. So no beat is added to bytes under way.
 *
 * @module
 */
import type { Sockets } from "../../ffi/sockets.ts";

/** Time between two beats. */
export const BEAT_MS = 1000;
/** Silent beats after which the other host cannot be reached: 3 to 4 s after it was cut off. */
const MOST_SILENT = 2;
/** Precision of the kernel's clock. */
const CLOCK_MS = 10;

/** What one end of a stream knows of the other host. */
export class Silence {
  #beats = 0;
  #askedAt: number = performance.now();
  #sent = 0;
  /** Bytes that had been sent at the last question. */
  #sentBefore = 0;

  /** Called with the number of bytes that were sent. */
  sent(count: number): void {
    this.#sent += count;
  }

  /** What is to be done at a beat: send one, wait for bytes that are under way, or give up a host that cannot be reached any more. */
  next(sockets: Sockets, descriptor: number): "send" | "wait" | "lost" {
    const { isUnderWay, silentMs, bytes } = sockets.answers(descriptor);
    const now = performance.now();
    const isSilent = isUnderWay && bytes < this.#sentBefore && silentMs >= Math.max(1, now - this.#askedAt - CLOCK_MS);
    this.#beats = isSilent ? this.#beats + 1 : 0;
    [this.#askedAt, this.#sentBefore] = [now, this.#sent];
    if (this.#beats >= MOST_SILENT) return "lost";
    return isUnderWay ? "wait" : "send";
  }
}
