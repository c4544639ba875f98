/**
 * Time: waiting, a scale that processes share, and durations in words.
 *
 * Permissions on Deno: none.
 *
 * @module
 */

/** Resolves after `ms` milliseconds. */
export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => void setTimeout(resolve, ms));
}

/** Lets this thread sleep for `ms` milliseconds: no event of it is handled meanwhile. */
export function blockFor(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

/**
 * Milliseconds since the epoch when `performance.now()` was 0, to some microseconds: processes of one host that measure it at
 * about the same time share one scale by it. Takes some milliseconds, as the wall clock is read at moments when it turns.
 */
export function originOfElapsed(
  now: () => number = Date.now,
  elapsed: () => number = () => performance.now(),
): number {
  let origin = -Infinity;
  for (let turn = 0; turn < 4; turn++) {
    const before = now();
    for (let after = before; after === before;) {
      after = now();
      // A reading after the turn was seen late gives less than the origin.
      if (after !== before) origin = Math.max(origin, after - elapsed());
    }
  }
  return origin;
}

/** A duration for people: `850 ms`, `12.3 s`, `4 min 05 s`, `2 h 13 min`. */
export function formatDuration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 59_950) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  const two = (value: number): string => String(value).padStart(2, "0");
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
  const minutes = Math.round(seconds / 60);
  return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
}
