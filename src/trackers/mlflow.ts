/**
 * MLflow, by its REST API (https://mlflow.org/docs/latest/rest-api.html). Requests are sent beside training and never awaited by a
 * step. While the server does not answer, numbers wait in a queue of bounded length.
 *
 * @module
 */
import { ConfigError } from "../errors.ts";
import type { Environment } from "../runtime/env.ts";
import { permissionRemedy } from "../runtime/permissions.ts";
import { METRICS_GO_ON, type Scalars, type TrackedRun, type Tracker } from "./tracker.ts";

/** The most numbers of a request, by MLflow's limits, and the most characters of a parameter's value. */
const BATCH_METRICS = 1000;
const BATCH_PARAMS = 100;
const PARAM_LENGTH = 6000;
/** The most numbers that wait for the server; the oldest are dropped then. */
const QUEUE_METRICS = 100_000;

/** The client's waiting times. */
export interface MlflowTimes {
  /** For one answer. */
  readonly answerMs: number;
  /** After a request that failed, until the next. */
  readonly retryMs: number;
  /** At the end of a run, for all that is left. */
  readonly finishMs: number;
}

const TIMES: MlflowTimes = { answerMs: 10_000, retryMs: 15_000, finishMs: 10_000 };

interface Metric {
  readonly key: string;
  readonly value: number | string;
  readonly timestamp: number;
  readonly step: number;
}

/** The server's address, and the identity of the client. */
interface Server {
  readonly url: URL;
  readonly experiment: string;
  readonly runId: string | undefined;
  readonly headers: Readonly<Record<string, string>>;
}

/**
 * Sends the metrics of a run to the server that the environment names: `MLFLOW_TRACKING_URI`, `MLFLOW_EXPERIMENT_NAME`
 * (`Default` unless given), `MLFLOW_RUN_ID` for a run that is there, and `MLFLOW_TRACKING_TOKEN` or `MLFLOW_TRACKING_USERNAME` and
 * `MLFLOW_TRACKING_PASSWORD`.
 *
 * @throws {ConfigError} if no server is named, or what names it is no URL of HTTP
 */
export function mlflow(run: TrackedRun, environment: Environment, times: MlflowTimes = TIMES): Tracker {
  return new Mlflow(run, serverOf(environment), times);
}

function serverOf(environment: Environment): Server {
  const text = environment.text("MLFLOW_TRACKING_URI");
  const url = text === undefined ? null : URL.parse(text);
  if (url === null || !/^https?:$/.test(url.protocol)) {
    // The text may hold a password.
    const got = text === undefined ? "nothing" : "something else";
    throw new ConfigError([{ path: "MLFLOW_TRACKING_URI", expected: "the http:// address of an MLflow server", got }]);
  }
  const token = environment.text("MLFLOW_TRACKING_TOKEN");
  const user = environment.text("MLFLOW_TRACKING_USERNAME") ?? decodeURIComponent(url.username);
  const password = environment.text("MLFLOW_TRACKING_PASSWORD") ?? decodeURIComponent(url.password);
  [url.username, url.password] = ["", ""];
  const basic = user === "" ? undefined : `Basic ${btoa(`${user}:${password}`)}`;
  const authorization = token === undefined ? basic : `Bearer ${token}`;
  return {
    url: new URL(`${url.href.replace(/\/+$/, "")}/api/2.0/mlflow/`),
    experiment: environment.text("MLFLOW_EXPERIMENT_NAME") ?? "Default",
    runId: environment.text("MLFLOW_RUN_ID"),
    headers: {
      "Content-Type": "application/json",
      ...authorization === undefined ? {} : { Authorization: authorization },
    },
  };
}

class Mlflow implements Tracker {
  readonly #run: TrackedRun;
  readonly #server: Server;
  readonly #times: MlflowTimes;
  readonly #queue: Metric[] = [];
  readonly #said = new Set<string>();
  #runId: string | undefined;
  /** The delivery under way. */
  #delivery: Promise<void> | undefined;
  /** Earliest time of the next request, by `performance.now()`. */
  #notBefore = 0;
  #isOver = false;

  constructor(run: TrackedRun, server: Server, times: MlflowTimes) {
    [this.#run, this.#server, this.#times] = [run, server, times];
  }

  log(step: number, scalars: Scalars): void {
    const timestamp = Date.now();
    for (const [key, value] of Object.entries(scalars)) {
      this.#queue.push({ key, value: Number.isFinite(value) ? value : String(value), timestamp, step });
    }
    const surplus = this.#queue.length - QUEUE_METRICS;
    if (surplus > 0) {
      this.#queue.splice(0, surplus);
      this.#warnOnce(
        "full",
        `MLflow's server has not answered for long: the oldest numbers are dropped. ${METRICS_GO_ON}`,
      );
    }
    this.#deliver();
  }

  async finish(outcome: "finished" | "failed"): Promise<void> {
    const deadline = new Promise<"late">((resolve) => setTimeout(() => resolve("late"), this.#times.finishMs));
    const rest = async (): Promise<"done"> => {
      await this.#delivery;
      this.#notBefore = 0;
      await this.#deliver();
      if (this.#runId !== undefined && this.#queue.length === 0) {
        const body = {
          run_id: this.#runId,
          status: outcome === "finished" ? "FINISHED" : "FAILED",
          end_time: Date.now(),
        };
        await this.#ask("runs/update", body).catch((error) => this.#fail(error));
      }
      return "done";
    };
    const end = await Promise.race([rest(), deadline]);
    this.#isOver = true;
    if (end === "late" || this.#queue.length > 0) {
      this.#run.warn(`MLflow did not get the last ${this.#queue.length} numbers; 'metrics.jsonl' has them`);
    }
  }

  /** Sends what waits, unless that is under way or the server failed a moment ago. */
  #deliver(): Promise<void> {
    if (this.#delivery === undefined && performance.now() >= this.#notBefore) {
      this.#delivery = this.#sendAll().catch((error) => this.#fail(error)).finally(() => this.#delivery = undefined);
    }
    return this.#delivery ?? Promise.resolve();
  }

  async #sendAll(): Promise<void> {
    this.#runId ??= await this.#begin();
    while (this.#queue.length > 0 && !this.#isOver) {
      const metrics = this.#queue.slice(0, BATCH_METRICS);
      await this.#ask("runs/log-batch", { run_id: this.#runId, metrics });
      // The queue may have dropped its oldest meanwhile.
      const sent = new Set(metrics);
      while (this.#queue[0] !== undefined && sent.has(this.#queue[0])) this.#queue.shift();
    }
  }

  /** Finds or makes the run, and tells it the configuration. */
  async #begin(): Promise<string> {
    const id = this.#server.runId ?? await this.#create();
    const settings = Object.entries(this.#run.settings).map(([key, value]) => ({
      key,
      value: value.slice(0, PARAM_LENGTH),
    }));
    // A run that is gone on with has its parameters, which MLflow lets nobody change.
    for (let i = 0; i < settings.length && this.#server.runId === undefined; i += BATCH_PARAMS) {
      await this.#ask("runs/log-batch", { run_id: id, params: settings.slice(i, i + BATCH_PARAMS) });
    }
    if (this.#server.runId !== undefined) await this.#ask("runs/update", { run_id: id, status: "RUNNING" });
    return id;
  }

  async #create(): Promise<string> {
    const { experiment } = this.#server;
    const query = `experiments/get-by-name?experiment_name=${encodeURIComponent(experiment)}`;
    const found = await this.#ask(query).catch((error) => {
      if (error instanceof Refusal && error.code === "RESOURCE_DOES_NOT_EXIST") return undefined;
      throw error;
    });
    const experimentId = found === undefined
      ? textAt(await this.#ask("experiments/create", { name: experiment }), "experiment_id")
      : textAt(found, "experiment", "experiment_id");
    const resumed = this.#run.step === 0 ? [] : [{ key: "resumed_at_step", value: String(this.#run.step) }];
    const body = { experiment_id: experimentId, run_name: this.#run.name, start_time: Date.now(), tags: resumed };
    return textAt(await this.#ask("runs/create", body), "run", "info", "run_id");
  }

  /** One request. @param body of a POST; without, it is a GET */
  async #ask(path: string, body?: Readonly<Record<string, unknown>>): Promise<unknown> {
    const response = await fetch(new URL(path, this.#server.url), {
      headers: this.#server.headers,
      redirect: "error",
      signal: AbortSignal.timeout(this.#times.answerMs),
      ...body === undefined ? {} : { method: "POST", body: JSON.stringify(body) },
    });
    const text = await response.text();
    if (!response.ok) throw new Refusal(response.status, text);
    return JSON.parse(text);
  }

  #fail(error: unknown): void {
    this.#notBefore = performance.now() + this.#times.retryMs;
    // `fetch failed` says nothing; its cause does.
    const told = error instanceof Error && error.cause instanceof Error ? error.cause : error;
    const reason = permissionRemedy(error) ?? (told instanceof Error ? told.message : String(told));
    this.#warnOnce("down", `MLflow at ${this.#server.url.origin} cannot be used now: ${reason}. ${METRICS_GO_ON}`);
  }

  #warnOnce(subject: string, message: string): void {
    if (this.#said.has(subject)) return;
    this.#said.add(subject);
    this.#run.warn(message);
  }
}

/** An answer that is no success. */
class Refusal extends Error {
  readonly code: string | undefined;

  constructor(status: number, text: string) {
    super(`it answers ${status}: ${text.slice(0, 200)}`);
    this.code = /"error_code"\s*:\s*"(\w+)"/.exec(text)?.[1];
  }
}

/** A text within an answer. @throws {Error} if it is not there */
function textAt(answer: unknown, ...keys: readonly string[]): string {
  let value = answer;
  for (const key of keys) value = typeof value === "object" && value !== null ? Reflect.get(value, key) : undefined;
  if (typeof value !== "string") throw new Error(`its answer has no '${keys.join(".")}'`);
  return value;
}
