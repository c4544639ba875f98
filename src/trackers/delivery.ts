/**
 * Delivery of a run's numbers to a server, beside training: requests are never awaited by a step. While the server does not answer,
 * numbers wait in a queue of bounded length.
 *
 * @module
 */
import { permissionRemedy } from "../runtime/permissions.ts";
import { METRICS_GO_ON, type TrackedRun } from "./tracker.ts";

/** A client's waiting times. */
export interface DeliveryTimes {
  /** For one answer. */
  readonly answerMs: number;
  /** After a request that failed, until the next. */
  readonly retryMs: number;
  /** After a delivery, until the next one of a run that goes on. */
  readonly betweenMs: number;
  /** At the end of a run, for all that is left. */
  readonly finishMs: number;
}

/** A delivery and its receiver. */
export interface Destination<T> {
  /** The tracker's name in warnings. */
  readonly name: string;
  /** The server's address in warnings, without what is secret. */
  readonly origin: string;
  /** The most items that wait for the server; the oldest are dropped then. */
  readonly most: number;
  /** Numbers in an item, for warnings. */
  count(item: T): number;
  /** Sends some of the items, from the first on, and returns how many. Throws where the server does not take them. */
  send(items: readonly T[]): Promise<number>;
  /** Ends the run at the server, which has all items. */
  end(outcome: "finished" | "failed"): Promise<void>;
}

/** Delivers items in their order. */
export class Delivery<T> {
  readonly #run: TrackedRun;
  readonly #times: DeliveryTimes;
  readonly #destination: Destination<T>;
  readonly #queue: T[] = [];
  readonly #said = new Set<string>();
  /** The delivery under way. */
  #sending: Promise<void> | undefined;
  /** Earliest time of the next request, by `performance.now()`. */
  #notBefore = 0;
  #isOver = false;

  /** Begins with an empty queue. */
  constructor(run: TrackedRun, times: DeliveryTimes, destination: Destination<T>) {
    [this.#run, this.#times, this.#destination] = [run, times, destination];
  }

  /** Takes items, and sends what waits unless that is under way or too early. Never throws and never waits. */
  add(...items: readonly T[]): void {
    this.#queue.push(...items);
    const { most, name } = this.#destination;
    const surplus = this.#queue.length - most;
    if (surplus > 0) {
      this.#queue.splice(0, surplus);
      this.#warnOnce(
        "full",
        `${name}'s server has not answered for long: the oldest numbers are dropped. ${METRICS_GO_ON}`,
      );
    }
    this.#deliver();
  }

  /** Delivers what is left, within its time, and ends the run. Never throws. */
  async finish(outcome: "finished" | "failed"): Promise<void> {
    const { name } = this.#destination;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const deadline = new Promise<"late">((resolve) => timer = setTimeout(() => resolve("late"), this.#times.finishMs));
    const rest = async (): Promise<"done"> => {
      await this.#sending;
      this.#notBefore = 0;
      await this.#deliver();
      if (this.#queue.length === 0) await this.#destination.end(outcome).catch((error) => this.#fail(error));
      return "done";
    };
    const end = await Promise.race([rest(), deadline]);
    clearTimeout(timer);
    this.#isOver = true;
    if (end === "late" || this.#queue.length > 0) {
      const left = this.#queue.reduce((sum, item) => sum + this.#destination.count(item), 0);
      this.#run.warn(`${name} did not get the last ${left} numbers; 'metrics.jsonl' has them`);
    }
  }

  #deliver(): Promise<void> {
    if (this.#sending === undefined && performance.now() >= this.#notBefore) {
      this.#sending = this.#sendAll().catch((error) => this.#fail(error)).finally(() => this.#sending = undefined);
    }
    return this.#sending ?? Promise.resolve();
  }

  async #sendAll(): Promise<void> {
    while (this.#queue.length > 0 && !this.#isOver) {
      const items = this.#queue.slice();
      const count = await this.#destination.send(items);
      // The queue may have dropped its oldest meanwhile.
      const sent = new Set(items.slice(0, count));
      while (this.#queue[0] !== undefined && sent.has(this.#queue[0])) this.#queue.shift();
    }
    this.#notBefore = performance.now() + this.#times.betweenMs;
  }

  #fail(error: unknown): void {
    this.#notBefore = performance.now() + this.#times.retryMs;
    const { name, origin } = this.#destination;
    // `fetch failed` says nothing; its cause does.
    const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
    const reason = permissionRemedy(error) ?? (cause instanceof Error ? cause.message : String(cause));
    this.#warnOnce("down", `${name} at ${origin} cannot be used now: ${reason}. ${METRICS_GO_ON}`);
  }

  #warnOnce(subject: string, message: string): void {
    if (this.#said.has(subject)) return;
    this.#said.add(subject);
    this.#run.warn(message);
  }
}

/** An answer that is no success. */
export class Refusal extends Error {
  readonly code: string | undefined;

  constructor(status: number, text: string) {
    super(`it answers ${status}: ${text.slice(0, 200)}`);
    this.code = /"error_code"\s*:\s*"(\w+)"/.exec(text)?.[1];
  }
}

/** One request, and its answer. @param body of a POST; without, it is a GET */
export async function ask(
  url: URL,
  { headers, answerMs }: { readonly headers: Readonly<Record<string, string>>; readonly answerMs: number },
  body?: Readonly<Record<string, unknown>>,
): Promise<unknown> {
  const response = await fetch(url, {
    headers,
    redirect: "error",
    signal: AbortSignal.timeout(answerMs),
    ...body === undefined ? {} : { method: "POST", body: JSON.stringify(body) },
  });
  const text = await response.text();
  if (!response.ok) throw new Refusal(response.status, text);
  return JSON.parse(text);
}

/** A value within an answer; undefined if it is not there. */
export function valueAt(answer: unknown, ...keys: readonly string[]): unknown {
  let value = answer;
  for (const key of keys) value = typeof value === "object" && value !== null ? Reflect.get(value, key) : undefined;
  return value;
}

/** A text within an answer. @throws {Error} if it is not there */
export function textAt(answer: unknown, ...keys: readonly string[]): string {
  const value = valueAt(answer, ...keys);
  if (typeof value !== "string") throw new Error(`its answer has no '${keys.join(".")}'`);
  return value;
}
