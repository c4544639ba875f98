/**
 * The live page of a run, on rank 0: a Worker serves it, and the run looks between steps at what the page has asked for. The run
 * never waits for the page, but for its start and a moment at its end.
 *
 * @module
 */
import { ConfigError } from "../errors.ts";
import { LiveWords } from "../report/live/words.ts";
import { type BackgroundWorker, startBackgroundWorker } from "../runtime/background_worker.ts";
import { sleep } from "../runtime/clock.ts";
import type { Logger } from "../runtime/log.ts";
import { LOOPBACK } from "../runtime/loopback_server.ts";
import type { OutputConfig } from "./output_config.ts";
import { nameOf } from "./run_record.ts";

/** Milliseconds for the last state to reach readers when a run ends. */
const LAST_WORD_MS = 2000;

/** A page that follows a run. */
export class LivePage implements Disposable {
  readonly #worker: BackgroundWorker;
  readonly #words: LiveWords;
  /** True once the Worker has failed. */
  #isGone = false;

  /** Use {@link openLivePage}. */
  constructor(worker: BackgroundWorker, words: LiveWords, log: Logger) {
    this.#worker = worker;
    this.#words = words;
    worker.ended.catch((error: unknown) => {
      if (words.get("ended") === 0) {
        log.warn(`Training goes on without its live page: ${error instanceof Error ? error.message : String(error)}`);
      }
      this.#isGone = true;
    });
  }

  /** Wishes since the last call. Never waits. */
  take(): { readonly saves: boolean; readonly stops: boolean } {
    return { saves: this.#words.take("save") > 0, stops: this.#words.take("stop") > 0 };
  }

  /** Gives readers the last state, for a moment. @param failure the error that has ended the run, if one has */
  async finish(failure?: string): Promise<void> {
    if (failure !== undefined) this.#words.fail(failure);
    this.#words.set("ended");
    const deadline = performance.now() + LAST_WORD_MS;
    while (!this.#isGone && this.#words.get("closed") === 0 && performance.now() < deadline) await sleep(10);
  }

  [Symbol.dispose](): void {
    this.#words.set("ended");
    this.#worker.terminate();
  }
}

/**
 * Opens the page, and tells its address, which holds a secret.
 *
 * @throws {ConfigError} if it cannot listen at the port
 */
export async function openLivePage(
  config: Pick<OutputConfig, "out" | "runName" | "livePort">,
  log: Logger,
): Promise<LivePage> {
  const words = new LiveWords();
  const secret = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0"));
  const job = { folder: config.out, name: nameOf(config), port: config.livePort, begun: Date.now() };
  const url = new URL("../report/live/live_worker.ts", import.meta.url);
  const worker = startBackgroundWorker(url, { ...job, secret: secret.join(""), words: words.buffer });
  let failure: string | undefined;
  worker.ended.catch((error: unknown) => failure = error instanceof Error ? error.message : String(error));
  while (words.get("port") === 0) {
    await sleep(5);
    const reason = words.reason ?? failure;
    if (reason === undefined) continue;
    worker.terminate();
    const expected = "a port of this machine that the run may listen at, or 0 for any free one";
    throw new ConfigError([{ path: "livePort", expected, got: `${config.livePort}: ${reason}` }]);
  }
  log.info(`Live page, for this machine alone: http://${LOOPBACK}:${words.get("port")}/${secret.join("")}/`);
  return new LivePage(worker, words, log);
}
