/**
 * MLflow, by its REST API (https://mlflow.org/docs/latest/rest-api.html).
 *
 * @module
 */
import { ConfigError } from "../errors.ts";
import type { Environment } from "../runtime/env.ts";
import { ask, Delivery, type DeliveryTimes, Refusal, textAt } from "./delivery.ts";
import type { Scalars, TrackedRun, Tracker } from "./tracker.ts";

/** The most numbers of a request, by MLflow's limits, and the most characters of a parameter's value. */
const BATCH_METRICS = 1000;
const BATCH_PARAMS = 100;
const PARAM_LENGTH = 6000;
/** The most numbers that wait for the server; the oldest are dropped then. */
const QUEUE_METRICS = 100_000;

const TIMES: DeliveryTimes = { answerMs: 10_000, retryMs: 15_000, betweenMs: 0, finishMs: 10_000 };

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
export function mlflow(run: TrackedRun, environment: Environment, times: DeliveryTimes = TIMES): Tracker {
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
  readonly #times: DeliveryTimes;
  readonly #delivery: Delivery<Metric>;
  #runId: string | undefined;

  constructor(run: TrackedRun, server: Server, times: DeliveryTimes) {
    [this.#run, this.#server, this.#times] = [run, server, times];
    this.#delivery = new Delivery(run, times, {
      ...{ name: "MLflow", origin: server.url.origin, most: QUEUE_METRICS },
      count: () => 1,
      send: (metrics) => this.#send(metrics.slice(0, BATCH_METRICS)),
      end: (outcome) => this.#end(outcome),
    });
  }

  log(step: number, scalars: Scalars): void {
    const timestamp = Date.now();
    this.#delivery.add(
      ...Object.entries(scalars).map(([key, value]) => ({
        key,
        value: Number.isFinite(value) ? value : String(value),
        timestamp,
        step,
      })),
    );
  }

  finish(outcome: "finished" | "failed"): Promise<void> {
    return this.#delivery.finish(outcome);
  }

  async #send(metrics: readonly Metric[]): Promise<number> {
    this.#runId ??= await this.#begin();
    await this.#ask("runs/log-batch", { run_id: this.#runId, metrics });
    return metrics.length;
  }

  async #end(outcome: "finished" | "failed"): Promise<void> {
    if (this.#runId === undefined) return;
    const status = outcome === "finished" ? "FINISHED" : "FAILED";
    await this.#ask("runs/update", { run_id: this.#runId, status, end_time: Date.now() });
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

  #ask(path: string, body?: Readonly<Record<string, unknown>>): Promise<unknown> {
    const { url, headers } = this.#server;
    return ask(new URL(path, url), { headers, answerMs: this.#times.answerMs }, body);
  }
}
