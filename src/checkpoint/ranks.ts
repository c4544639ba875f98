/**
 * Work that every rank does on files and that may fail on one of them: then all stop, before any of them waits for the
 * failed one in a collective of the model.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";

/** What files need of a process group. */
export type Ranks = Pick<ProcessGroup, "rank" | "size" | "throwTogether" | "exchangeText" | "timeoutSeconds">;

/** How long ranks wait for one that reads, writes or tokenizes; that it has died they see in seconds all the same. */
const PATIENCE_SECONDS: number = 24 * 3600;

/** A process on its own. */
export const ALONE: Ranks = {
  rank: 0,
  size: 1,
  throwTogether(error): void {
    if (error !== undefined) throw error;
  },
  exchangeText: (text) => [text],
  get timeoutSeconds(): number {
    return PATIENCE_SECONDS;
  },
  set timeoutSeconds(_: number) {
    // It waits for nobody.
  },
};

/**
 * Runs `action` with a deadline for late ranks that no file and no text is too large for.
 *
 * @returns what `action` does
 */
export async function patiently<T>(ranks: Pick<Ranks, "timeoutSeconds">, action: () => Promise<T>): Promise<T> {
  const { timeoutSeconds } = ranks;
  ranks.timeoutSeconds = Math.max(timeoutSeconds, PATIENCE_SECONDS);
  try {
    return await action();
  } finally {
    ranks.timeoutSeconds = timeoutSeconds;
  }
}

/**
 * Runs `action` on every rank; returns once all have done it, however long one takes. `action` must not call collectives that a rank which fails
 * early would leave out.
 *
 * @param label what is done, e.g. `save checkpoint`
 * @throws what this rank's action threw; where it succeeded, a {@link CollectiveError} with what the failed ranks said
 */
export function together<T>(ranks: Ranks, label: string, action: () => T | Promise<T>): Promise<T> {
  return patiently(ranks, () => attempt(ranks, label, action));
}

async function attempt<T>(ranks: Ranks, label: string, action: () => T | Promise<T>): Promise<T> {
  let result: T;
  try {
    result = await action();
  } catch (thrown) {
    const error = thrown instanceof Error ? thrown : new Error(String(thrown));
    try {
      ranks.throwTogether(error, label);
    } catch {
      // The rank that failed knows best: its own error has the path and the cause.
    }
    throw error;
  }
  ranks.throwTogether(undefined, label);
  return result;
}
