/**
 * Threads that share the work of a rank's kernels: Workers that call one function of the library and stay within it. They take
 * pieces of a call from a block of memory (`wasm/src/pool.rs`), so no call comes to TypeScript on any of them, and none to
 * another thread's JavaScript. The bits of a result do not depend on how many there are.
 *
 * Permissions on Deno: `--allow-ffi`, and `--allow-read` of this package.
 *
 * @module
 */
import { ArgumentError, UnsupportedError } from "../../errors.ts";
import type { Posix } from "../../ffi/posix.ts";
import { type BackgroundWorker, startBackgroundWorker } from "../../runtime/background_worker.ts";
import { sleep } from "../../runtime/clock.ts";
import { permissionRemedy } from "../../runtime/permissions.ts";
import { coreCount, mostThreads } from "../../runtime/processes.ts";
import { countOf } from "../../words.ts";
import type { HelperData } from "./helper.ts";
import type { NativeLibrary } from "./library.ts";

/** Most threads of a rank. */
const MAX_THREADS = 1024;

/** Elements of work that a piece has at least: less is not worth the microsecond or two that a helper needs to take it up. */
const LEAST_WORK = 8192;

/** How long helpers may take to start, and how often it is looked whether they have. */
const START_MS = 60_000;
const POLL_MS = 1;

/** The threads of a device. */
export class ThreadPool {
  /** How many share the work: the caller of kernels and its helpers. */
  readonly threads: number;
  /** Where it lies; calls are told by the last of their words of arguments. */
  readonly address: number;
  readonly #end: () => void;
  #isOver = false;

  /** Use {@link openThreads}. */
  constructor(threads: number, address: number, end: () => void) {
    this.threads = threads;
    this.address = address;
    this.#end = end;
  }

  /** Lets the helpers go; no kernel may be called with it after that. */
  dispose(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#end();
  }
}

/**
 * Starts the threads that help one.
 *
 * @param threads how many share the work, the caller included; of 1 there is no pool
 * @param leastWork elements that a piece of work has at least: fewer than by default in tests, where arrays are small
 * @throws {ArgumentError} if that is no number of threads
 * @throws {UnsupportedError} if a helper cannot be started
 */
export async function openThreads(
  posix: Posix,
  { path, others }: Pick<NativeLibrary, "path" | "others">,
  threads: number,
  leastWork: number = LEAST_WORK,
): Promise<ThreadPool | undefined> {
  if (!(Number.isInteger(threads) && threads >= 1 && threads <= MAX_THREADS)) {
    throw new ArgumentError(`Cannot run ${threads} threads: a rank has from 1 to ${MAX_THREADS}`);
  }
  if (threads > mostThreads()) {
    throw new ArgumentError(
      `Cannot run ${threads} threads on ${countOf(coreCount(), "core")}: a rank has at most ${mostThreads()} here`,
    );
  }
  if (threads === 1) return undefined;
  const { provider } = posix;
  const head = Float64Array.of(threads, leastWork);
  const byteLength = Math.ceil(others.pool_bytes(provider.addressOf(head)) / posix.pageBytes) * posix.pageBytes;
  const pool = posix.mapPrivate(byteLength);
  new Float64Array(provider.viewOf(pool, head.byteLength)).set(head);
  const data: HelperData = { path, pool: provider.numberOf(pool) };
  const url = new URL("./helper.ts", import.meta.url);
  const workers: BackgroundWorker[] = [];
  const end = (): void => {
    others.pool_end(pool);
    for (const worker of workers) worker.terminate();
  };
  try {
    while (workers.length < threads - 1) workers.push(startBackgroundWorker(url, data));
    await Promise.race([
      allHelp(() => others.pool_helpers(pool), workers.length),
      ...workers.map(({ ended }) => ended),
    ]);
  } catch (error) {
    // The block stays mapped: a helper that comes too late sees there that it is not wanted.
    end();
    const reason = permissionRemedy(error) ?? (error instanceof Error ? error.message : String(error));
    throw new UnsupportedError(`Cannot start ${threads} threads: ${reason}. With threads 1, a rank has its own only`);
  }
  return new ThreadPool(threads, data.pool, () => {
    end();
    posix.unmap(pool, byteLength);
  });
}

async function allHelp(helpers: () => number, wanted: number): Promise<void> {
  const deadline = performance.now() + START_MS;
  while (helpers() < wanted) {
    if (performance.now() > deadline) {
      throw new Error(`${helpers()} of ${wanted} helpers have come within ${START_MS / 1000} seconds`);
    }
    await sleep(POLL_MS);
  }
}
