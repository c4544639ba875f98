/**
 * Workers that the process does not wait for: it ends when all else has, whatever they do. The runtimes give such ones by the
 * interface of Node only.
 *
 * @module
 */
import { Worker, workerData } from "node:worker_threads";

/** A running one. */
export interface BackgroundWorker {
  /** Rejects when it has ended, by an error or by itself. */
  readonly ended: Promise<never>;
  /** From now on, the process waits for it all the same. */
  hold(): void;
  /** Ends it, if it is not within native code: that goes on. */
  terminate(): void;
}

/** Starts a Worker of a module, which finds what it is given by {@link givenData}. */
export function startBackgroundWorker(url: URL, data: unknown): BackgroundWorker {
  const worker = new Worker(url, { workerData: data });
  worker.unref();
  const ended = new Promise<never>((_, reject) => {
    worker.on("error", reject);
    worker.on("exit", () => reject(new Error("its Worker has ended")));
  });
  ended.catch(() => {}); // who does not wait for it is not told
  return { ended, hold: () => worker.ref(), terminate: () => void worker.terminate() };
}

/** What the Worker that this is was given. */
export function givenData(): unknown {
  return workerData;
}
