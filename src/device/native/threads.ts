/**
 * Threads that share the work of a rank's kernels: Workers that call one function of the library and stay in it. They take pieces
 * of a call from a block of memory (`wasm/src/pool.rs`), so calls involve no JavaScript of other threads. Results have the same
 * bits for any number of threads.
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

/** Largest number of threads of a rank. */
const MAX_THREADS = 1024;

/** Least number of elements in a piece: less is not worth the one or two microseconds until a helper begins. */
const LEAST_WORK = 8192;

/** Longest time until helpers have started, and interval of the checks. */
const START_MS = 60_000;
const POLL_MS = 1;

export class ThreadPool {
  /** Number of threads that share the work: the caller of kernels and its helpers. */
  readonly threads: number;
  /** Address of the pool, which calls pass as the last word of their arguments. */
  readonly address: number;
  readonly #end: () => void;
  #isOver = false;

  /** Use {@link openThreads}. */
  constructor(threads: number, address: number, end: () => void) {
    this.threads = threads;
    this.address = address;
    this.#end = end;
  }

  /** Ends the helpers; no kernel may be called with the pool after. */
  dispose(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#end();
  }
}

/**
 * Starts helpers.
 *
 * @param threads number of threads that share the work, with the caller; for 1 there is no pool
 * @param leastWork least number of elements in a piece; less than the default in tests, where arrays are small
 * @throws {ArgumentError} if `threads` is out of range
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
    // The block stays mapped: a helper that starts too late sees there that it must end.
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
