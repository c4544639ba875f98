/**
 * What a host does between two kernels that it computes itself, e.g. lets messages move on that nothing else moves.
 *
 * @module
 */

/** Least time between two pauses. */
const PAUSE_MS = 0.5;

/** The pauses of a device. */
export class Pauses {
  readonly #actions = new Set<() => void>();
  #nextAt = 0;
  #isPaused = false;

  /** Calls `action` from now on in each pause, until the result is disposed. It must not throw, and may compute. */
  use(action: () => void): Disposable {
    this.#actions.add(action);
    return { [Symbol.dispose]: () => void this.#actions.delete(action) };
  }

  /** Called after each kernel. */
  take(): void {
    if (this.#actions.size === 0 || this.#isPaused) return;
    const now = performance.now();
    if (now < this.#nextAt) return;
    this.#isPaused = true;
    try {
      for (const action of this.#actions) action();
    } finally {
      this.#isPaused = false;
      this.#nextAt = performance.now() + PAUSE_MS;
    }
  }
}
