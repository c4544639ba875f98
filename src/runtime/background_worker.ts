/**
 * Workers for which the process does not wait: it ends when all else has ended. Only Node's interface has such Workers, in both
 * runtimes.
 *
 * @module
 */
import { Worker, workerData } from "node:worker_threads";

export interface BackgroundWorker {
  /** Rejects when the Worker has ended, by an error or by itself. */
  readonly ended: Promise<never>;
  /** Makes the process wait for it from now on. */
  hold(): void;
  /** Ends the Worker, unless it is inside native code, which goes on. */
  terminate(): void;
}

/** Starts a Worker of a module, which reads `data` by {@link givenData}. */
export function startBackgroundWorker(url: URL, data: unknown): BackgroundWorker {
  const worker = new Worker(url, { workerData: data });
  worker.unref();
  const ended = new Promise<never>((_, reject) => {
    worker.on("error", reject);
    worker.on("exit", () => reject(new Error("its Worker has ended")));
  });
  ended.catch(() => {}); // a caller that does not wait for it gets no error
  return { ended, hold: () => worker.ref(), terminate: () => void worker.terminate() };
}

/** The `data` of this Worker. */
export function givenData(): unknown {
  return workerData;
}

/** A module that runs in a Worker, for which the process does not wait. */
export interface BackgroundRun {
  /** Resolves when the Worker has ended well, and rejects if it fails. */
  readonly ended: Promise<void>;
  /** Makes the process wait for the Worker. Without it a process that has nothing else to do ends, though it awaits {@link ended}. */
  hold(): void;
}

/** Runs a module in a Worker that reads `data` by {@link givenData}. */
export function runInBackground(url: URL, data: unknown): BackgroundRun {
  const worker = new Worker(url, { workerData: data });
  worker.unref();
  const ended = new Promise<void>((resolve, reject) => {
    worker.on("error", reject);
    worker.on("exit", (code) => code === 0 ? resolve() : reject(new Error(`its Worker ended with ${code}`)));
  });
  return { ended, hold: () => worker.ref() };
}
