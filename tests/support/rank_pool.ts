/**
 * Ranks of loopback worlds as Workers that are kept: the next world of the same module takes them, so that its modules are
 * loaded once a test file. A Worker whose rank has failed is not kept.
 *
 * @module
 */
import { abortWorkers, type LoopbackWorld, markDead } from "../../src/comm/control/workers.ts";
import { createLoopbackWorld } from "../../src/comm/data/loopback.ts";
import type { StagingOptions } from "../../src/comm/data/sizes.ts";
import type { RankContext } from "../../src/comm/loopback_workers.ts";
import { workerScope } from "../../src/runtime/worker_scope.ts";

/** Time for which a Worker is kept; it keeps the process alive, too. */
const KEPT_MS = 500;

type Outcome = { readonly value: unknown } | { readonly name: string; readonly message: string };

const idle = new Map<string, Worker[]>();
let running = 0;
let closing: ReturnType<typeof setTimeout> | undefined;

/** Same as `runLoopback`, of a module that calls {@link serveRanks}. */
export async function runPooled(
  size: number,
  url: URL,
  data: unknown,
  options: StagingOptions = {},
): Promise<readonly unknown[]> {
  clearTimeout(closing);
  running++;
  const world = createLoopbackWorld(size, options);
  try {
    const ends = await Promise.all(
      Array.from({ length: size }, (_, rank) => runOne(url, world, { rank, size, world, data })),
    );
    const failed = ends.findIndex((end) => !("value" in end));
    const end = ends[failed];
    if (end !== undefined && "message" in end) {
      throw Object.assign(new Error(end.message), { name: end.name, message: `Rank ${failed}: ${end.message}` });
    }
    return ends.map((one) => "value" in one ? one.value : undefined);
  } finally {
    if (--running === 0) closing = setTimeout(closeAll, KEPT_MS);
  }
}

async function runOne(url: URL, world: LoopbackWorld, context: RankContext): Promise<Outcome> {
  const kept = idle.get(url.href) ?? [];
  idle.set(url.href, kept);
  const worker = kept.pop() ?? new Worker(url, { type: "module" });
  const outcome = await outcomeOf(worker, context);
  if ("value" in outcome) kept.push(worker);
  else {
    abortWorkers(world, `rank ${context.rank} failed: ${outcome.message}`);
    markDead(world, context.rank);
    worker.terminate();
  }
  return outcome;
}

function outcomeOf(worker: Worker, context: RankContext): Promise<Outcome> {
  const heard = new AbortController();
  const { signal } = heard;
  return new Promise<Outcome>((resolve) => {
    worker.addEventListener("message", (event: MessageEvent) => resolve(event.data), { signal });
    worker.addEventListener("error", (event: ErrorEvent) => {
      event.preventDefault(); // Deno ends the process for a Worker's error that nobody has handled
      resolve({ name: "Error", message: event.message });
    }, { signal });
    worker.addEventListener("close", () => resolve({ name: "Error", message: "its Worker ended" }), { signal });
    worker.postMessage({ pooledRank: context });
  }).finally(() => heard.abort());
}

function closeAll(): void {
  for (const workers of idle.values()) for (const worker of workers.splice(0)) worker.terminate();
}

/** The Worker's side: call it once, at the top of the module. `body` may be called many times, one call after the other. */
export function serveRanks(body: (context: RankContext) => unknown): void {
  const scope = workerScope();
  globalThis.addEventListener("message", async (event: Event) => {
    if (!(event instanceof MessageEvent) || !isTask(event.data)) return;
    try {
      scope.postMessage({ value: await body(event.data.pooledRank) });
    } catch (error) {
      const { name, message } = error instanceof Error ? error : new Error(String(error));
      scope.postMessage({ name, message });
    }
  });
}

function isTask(message: unknown): message is { readonly pooledRank: RankContext } {
  return typeof message === "object" && message !== null && "pooledRank" in message;
}
