/**
 * Starts the ranks of a loopback world as Workers of this process and collects what they return; a rank that fails
 * stops the others. For tests and for simulating several ranks on one machine; who trains uses the launcher.
 *
 * @module
 */
import { workerScope } from "../runtime/worker_scope.ts";
import { abortWorkers, type LoopbackWorld, markDead } from "./control/workers.ts";
import { createLoopbackWorld } from "./data/loopback.ts";
import type { StagingOptions } from "./data/sizes.ts";

/** What a rank started by {@link runLoopback} is given. */
export interface RankContext {
  /** This rank, from 0. */
  readonly rank: number;
  /** How many ranks there are. */
  readonly size: number;
  /** For `openLoopback(world, rank, device)`. */
  readonly world: LoopbackWorld;
  /** What was given to {@link runLoopback}. */
  readonly data: unknown;
}

/** The only message of a rank's Worker. */
type Outcome = { readonly value: unknown } | Required<Pick<Error, "name" | "message" | "stack">>;

/**
 * Runs `size` ranks, each a Worker of the module at `url`, which calls {@link serveRank}.
 *
 * @param data given to every rank, by structured clone
 * @returns what each rank returned, by rank
 * @throws what the first rank to fail threw, its message headed by the rank
 * @example
 * ```ts ignore
 * const sums = await runLoopback(2, new URL("./worker.ts", import.meta.url), { steps: 3 });
 * ```
 */
export async function runLoopback(
  size: number,
  url: URL,
  data: unknown,
  options: StagingOptions = {},
): Promise<readonly unknown[]> {
  const world = createLoopbackWorld(size, options);
  const workers: Worker[] = [];
  const errors: Error[] = [];
  const ranks = Array.from({ length: size }, async (_, rank) => {
    const worker = new Worker(url, { type: "module" });
    workers.push(worker);
    try {
      return await resultOf(worker, { rank, size, world, data });
    } catch (thrown) {
      const error = thrown instanceof Error ? thrown : new Error(String(thrown));
      abortWorkers(world, `rank ${rank} failed: ${error.message}`);
      error.message = `Rank ${rank}: ${error.message}`;
      errors.push(error);
      markDead(world, rank);
    }
  });
  const results = await Promise.all(ranks);
  for (const worker of workers) worker.terminate();
  if (errors[0] !== undefined) throw errors[0];
  return results;
}

/** Starts one rank; resolves with what it returns. */
function resultOf(worker: Worker, context: RankContext): Promise<unknown> {
  return new Promise((resolve, reject) => {
    worker.addEventListener("message", (event: MessageEvent) => {
      const outcome: Outcome = event.data;
      if ("value" in outcome) resolve(outcome.value);
      else reject(Object.assign(new Error(outcome.message), outcome));
    });
    worker.addEventListener("error", (event: ErrorEvent) => {
      // Deno ends the process for a Worker's error that nobody has handled.
      event.preventDefault();
      reject(new Error(event.message));
    });
    // Bun says so when a Worker has ended; for one that has answered this changes nothing.
    worker.addEventListener("close", () => reject(new Error("its Worker ended without a result")));
    worker.postMessage({ fullyshardRank: context });
  });
}

/** The Worker's side of {@link runLoopback}: call it once, at the top of the module. */
export function serveRank(body: (context: RankContext) => unknown): void {
  const scope = workerScope();
  const onMessage = async (event: Event): Promise<void> => {
    if (!(event instanceof MessageEvent) || !isStart(event.data)) return;
    globalThis.removeEventListener("message", onMessage);
    try {
      scope.postMessage({ value: await body(event.data.fullyshardRank) });
    } catch (error) {
      const { name, message, stack = "" } = error instanceof Error ? error : new Error(String(error));
      scope.postMessage({ name, message, stack });
    }
  };
  globalThis.addEventListener("message", onMessage);
}

function isStart(message: unknown): message is { readonly fullyshardRank: RankContext } {
  return typeof message === "object" && message !== null && "fullyshardRank" in message;
}
