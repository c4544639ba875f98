/**
 * Weights & Biases, by the requests of its SDK (https://github.com/wandb/wandb, `core/api/graphql/mutation_run.graphql` and
 * `core/internal/filestream`): a run is made by GraphQL, and its numbers are lines of a file that grows, each with its place, so that
 * lines which are sent twice are there once.
 *
 * @module
 */
import { ConfigError } from "../errors.ts";
import type { Environment } from "../runtime/env.ts";
import { WANDB_SERVICE } from "../runtime/variables.ts";
import { hostName } from "../runtime/processes.ts";
import { ask, Delivery, type DeliveryTimes, textAt, valueAt } from "./delivery.ts";
import type { Scalars, TrackedRun, Tracker } from "./tracker.ts";

/** The SDK sends a run's lines every 15 seconds; the service refuses more requests than some 200 a minute. */
const TIMES: DeliveryTimes = { answerMs: 20_000, retryMs: 15_000, betweenMs: 15_000, finishMs: 15_000 };

/** The most lines of a request, and the most that wait for the server. */
const BATCH_LINES = 1000;
const QUEUE_LINES = 20_000;

const HISTORY = "wandb-history.jsonl";
const SUMMARY = "wandb-summary.json";

/** Makes a run, or finds the one with that name, and sets its configuration. */
const UPSERT = `mutation UpsertBucket(
  $name: String, $project: String, $entity: String, $displayName: String, $config: JSONString, $host: String
) {
  upsertBucket(input: {
    name: $name, modelName: $project, entityName: $entity, displayName: $displayName, config: $config, host: $host
  }) {
    bucket { id name historyLineCount project { name entity { name } } }
    inserted
  }
}`;

/** Numbers of a step. */
interface HistoryLine {
  readonly step: number;
  /** Seconds since the epoch. */
  readonly timestamp: number;
  readonly scalars: Scalars;
}

/** The server's address, and the identity of the client. */
interface WandbServer {
  readonly url: URL;
  readonly headers: Readonly<Record<string, string>>;
  readonly project: string;
  /** Undefined: the key's own. */
  readonly entity: string | undefined;
  readonly runId: string | undefined;
}

/** A run at the server. */
interface ServerRun {
  /** Address of its file stream. */
  readonly stream: URL;
  /** Number of lines that the server has. */
  lines: number;
}

/**
 * Sends the metrics of a run to the service that the environment names, by the variables of the SDK: `WANDB_API_KEY`, `WANDB_BASE_URL`
 * (`https://api.wandb.ai` unless given), `WANDB_PROJECT` (`uncategorized`), `WANDB_ENTITY`, and `WANDB_RUN_ID` for a run that is there.
 * The key is sent to that service alone, and never written.
 *
 * @throws {ConfigError} if there is no key, or the address is no URL of HTTP
 */
export function wandb(run: TrackedRun, environment: Environment, times: DeliveryTimes = TIMES): Tracker {
  return new Wandb(run, serverOf(environment), times);
}

function serverOf(environment: Environment): WandbServer {
  const text = environment.text("WANDB_BASE_URL") ?? WANDB_SERVICE;
  const url = URL.parse(text);
  if (url === null || !/^https?:$/.test(url.protocol) || url.username !== "" || url.password !== "") {
    // The text may hold a password.
    const expected = "the http:// or https:// address of a W&B server, without a name or password";
    throw new ConfigError([{ path: "WANDB_BASE_URL", expected, got: "something else" }]);
  }
  const key = environment.text("WANDB_API_KEY");
  if (key === undefined || !/^[\x21-\x7e]+$/.test(key)) {
    const got = key === undefined ? "nothing" : "characters that no key has";
    throw new ConfigError([{ path: "WANDB_API_KEY", expected: "a key of W&B, as its settings page shows it", got }]);
  }
  return {
    url: new URL(`${url.href.replace(/\/+$/, "")}/`),
    headers: { "Content-Type": "application/json", Authorization: `Basic ${btoa(`api:${key}`)}` },
    project: environment.text("WANDB_PROJECT") ?? "uncategorized",
    entity: environment.text("WANDB_ENTITY"),
    runId: environment.text("WANDB_RUN_ID"),
  };
}

class Wandb implements Tracker {
  readonly #run: TrackedRun;
  readonly #server: WandbServer;
  readonly #times: DeliveryTimes;
  readonly #delivery: Delivery<HistoryLine>;
  /** Name of the run at the server, made before the first request, so that a request that is sent again makes no second run. */
  readonly #runId: string;
  readonly #begin = Date.now() / 1000;
  /** The latest number of each tag, which the server shows as the run's summary. */
  readonly #summary: Record<string, number | string> = {};
  #known: ServerRun | undefined;

  constructor(run: TrackedRun, server: WandbServer, times: DeliveryTimes) {
    [this.#run, this.#server, this.#times] = [run, server, times];
    this.#runId = server.runId ?? newRunId();
    this.#delivery = new Delivery(run, times, {
      ...{ name: "W&B", origin: server.url.origin, most: QUEUE_LINES },
      count: ({ scalars }) => Object.keys(scalars).length,
      send: (lines) => this.#send(lines.slice(0, BATCH_LINES)),
      end: (outcome) => this.#end(outcome),
    });
  }

  log(step: number, scalars: Scalars): void {
    this.#delivery.add({ step, timestamp: Date.now() / 1000, scalars });
  }

  finish(outcome: "finished" | "failed"): Promise<void> {
    return this.#delivery.finish(outcome);
  }

  async #send(lines: readonly HistoryLine[]): Promise<number> {
    const run = this.#known ??= await this.#open();
    const content = lines.map((line) => JSON.stringify(this.#columnsOf(line)));
    for (const line of lines) Object.assign(this.#summary, this.#columnsOf(line));
    await this.#ask(run.stream, {
      files: {
        [HISTORY]: { offset: run.lines, content },
        [SUMMARY]: { offset: 0, content: [JSON.stringify(this.#summary)] },
      },
    });
    run.lines += lines.length;
    return lines.length;
  }

  async #end(outcome: "finished" | "failed"): Promise<void> {
    if (this.#known === undefined) return;
    await this.#ask(this.#known.stream, { complete: true, exitcode: outcome === "finished" ? 0 : 1 });
  }

  /** The numbers of a step with those that the SDK adds; numbers that are not finite are text, as JSON lacks them. */
  #columnsOf({ step, timestamp, scalars }: HistoryLine): Readonly<Record<string, number | string>> {
    const numbers = Object.entries(scalars).map(([tag, value]) =>
      [tag, Number.isFinite(value) ? value : String(value)] as const
    );
    return { ...Object.fromEntries(numbers), _step: step, _timestamp: timestamp, _runtime: timestamp - this.#begin };
  }

  /** Makes or finds the run, and tells it the configuration. */
  async #open(): Promise<ServerRun> {
    const { url, project, entity, runId } = this.#server;
    const resumed = this.#run.step === 0 ? {} : { resumed_at_step: this.#run.step };
    const settings = Object.entries({ ...this.#run.settings, ...resumed }).map(([key, value]) => [key, { value }]);
    const variables = {
      ...{ name: this.#runId, project, entity, host: hostName() },
      // A run that is gone on with keeps the name that it has.
      ...runId === undefined ? { displayName: this.#run.name } : {},
      config: JSON.stringify(Object.fromEntries(settings)),
    };
    const answer = await this.#ask(new URL(`${url.href}graphql`), {
      ...{ query: UPSERT, variables, operationName: "UpsertBucket" },
    });
    const errors = valueAt(answer, "errors");
    if (Array.isArray(errors) && errors.length > 0) {
      throw new Error(`it refuses the run: ${String(valueAt(errors[0], "message")).slice(0, 200)}`);
    }
    const bucket = valueAt(answer, "data", "upsertBucket", "bucket");
    const parts = [
      textAt(bucket, "project", "entity", "name"),
      textAt(bucket, "project", "name"),
      textAt(bucket, "name"),
    ];
    const lines = valueAt(bucket, "historyLineCount");
    return {
      stream: new URL(`files/${parts.map(encodeURIComponent).join("/")}/file_stream`, url),
      lines: typeof lines === "number" ? lines : 0,
    };
  }

  #ask(url: URL, body: Readonly<Record<string, unknown>>): Promise<unknown> {
    return ask(url, { headers: this.#server.headers, answerMs: this.#times.answerMs }, body);
  }
}

/** Eight letters and digits, as the SDK names runs. */
function newRunId(): string {
  return Array.from(crypto.getRandomValues(new Uint32Array(8)), (word) => (word % 36).toString(36)).join("");
}
