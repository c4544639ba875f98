/**
 * Starts the ranks of a loopback world as Workers of this process and collects their results; a rank that fails stops the
 * others. For tests, and for trying several ranks on one machine; real trainings use the launcher.
 *
 * @module
 */
import { workerScope } from "../runtime/worker_scope.ts";
import { abortWorkers, type LoopbackWorld, markDead } from "./control/workers.ts";
import { createLoopbackWorld } from "./data/loopback.ts";
import type { StagingOptions } from "./data/sizes.ts";

/** Arguments of a rank that {@link runLoopback} started. */
export interface RankContext {
  /** This rank, from 0. */
  readonly rank: number;
  /** Number of ranks. */
  readonly size: number;
  /** The shared memory, for `openLoopback(world, rank, device)`. */
  readonly world: LoopbackWorld;
  /** The `data` of {@link runLoopback}. */
  readonly data: unknown;
}

/** The one message that a rank's Worker sends. */
type WorkerOutcome = { readonly value: unknown } | Required<Pick<Error, "name" | "message" | "stack">>;

/**
 * Starts `size` ranks, each a Worker of the module at `url`, which calls {@link serveRank}.
 *
 * @param data handed to every rank, by structured clone
 * @returns the result of each rank
 * @throws the error of the first rank that failed, its message headed by the rank
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

function resultOf(worker: Worker, context: RankContext): Promise<unknown> {
  return new Promise((resolve, reject) => {
    worker.addEventListener("message", (event: MessageEvent) => {
      const outcome: WorkerOutcome = event.data;
      if ("value" in outcome) resolve(outcome.value);
      else reject(Object.assign(new Error(outcome.message), outcome));
    });
    worker.addEventListener("error", (event: ErrorEvent) => {
      // Deno ends the process for a Worker's error that nobody has handled.
      event.preventDefault();
      reject(new Error(event.message));
    });
    // Bun fires this when a Worker has ended; for a Worker that has answered, the rejection has no effect.
    worker.addEventListener("close", () => reject(new Error("its Worker ended without a result")));
    worker.postMessage({ fullyshardRank: context });
  });
}

/** The Worker's side of {@link runLoopback}: call it once, at the top level of the module. */
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
