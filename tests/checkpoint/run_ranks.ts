/** Runs tasks of checkpoints on ranks in Workers. @module */
import { runPooled } from "../support/rank_pool.ts";
import { type Outcome, prepare, type Task } from "./bed.ts";

/** The outcome of each task, by task and rank. */
export async function runRanks(tasks: readonly Task[]): Promise<readonly (readonly Outcome[])[]> {
  const size = Math.max(...tasks.map(({ world }) => world));
  const url = new URL("./checkpoint_rank.ts", import.meta.url);
  const byRank = await runPooled(size, url, prepare(tasks, size)) as readonly (readonly Outcome[])[];
  const next = byRank.map(() => 0);
  return tasks.map(({ world }) =>
    Array.from({ length: world }, (_, rank) => {
      const outcome = byRank[rank]?.[next[rank] ?? 0];
      next[rank] = (next[rank] ?? 0) + 1;
      if (outcome === undefined) throw new Error(`rank ${rank} did not do its task`);
      return outcome;
    })
  );
}
