/**
 * The host's time for a step.
 *
 * @module
 */
import type { Device } from "fullyshard/device";

const STEPS = 3;

/**
 * Milliseconds until a step is enqueued, of the best of some that each begin on a card without work: steps that follow each other
 * would wait for room among the launches that the driver keeps. A step that reads its loss waits for the card, and this with it.
 */
export function hostMillisecondsOf(device: Device, step: () => void): number {
  let best = Infinity;
  for (let i = 0; i < STEPS; i++) {
    device.synchronize();
    const started = performance.now();
    step();
    best = Math.min(best, performance.now() - started);
  }
  device.synchronize();
  return best;
}
