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

/** Blocks this thread for `ms` milliseconds; its events wait. */
export function blockFor(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

/**
 * Time in milliseconds since the epoch at which `performance.now()` was 0, to some microseconds: with it, processes of a host
 * share one scale. Takes some milliseconds, as the wall clock is read when it ticks.
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
      // If the tick was seen late, the difference is less than the origin.
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
