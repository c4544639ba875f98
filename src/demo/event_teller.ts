/**
 * Makes of a rank's trace the messages of its page, and holds the rank at moments of it.
 *
 * @module
 */
import { type MemoryTerms, NO_TERMS } from "../device/allocator.ts";
import { type TraceCategory, type TraceRecord, type TraceSink, TRACKS } from "../runtime/trace.ts";
import { type DemoEvent, type DemoOrder, isReduction, isUpdate } from "./events.ts";
import type { Pace } from "./pace.ts";
import type { DemoSettings } from "./settings.ts";

/** Milliseconds for which events are kept, so that several go in one message. */
const KEPT_MS = 25;

/** Categories that a page draws. */
const SHOWN: readonly TraceCategory[] = ["step", "collective", "unit", "wait", "free"];

/** Receives a rank's trace. */
export class EventTeller implements TraceSink {
  /** Memory of the rank, once it is open. */
  memory: () => MemoryTerms = () => NO_TERMS;
  /** Tells and holds nothing more. */
  isQuiet = false;
  readonly #rank: number;
  readonly #strategy: DemoSettings["strategy"];
  readonly #pace: Pace | undefined;
  readonly #tell: (events: readonly DemoEvent[], waits: boolean) => void;
  /** Open spans by the track's number. */
  readonly #open = new Map<number, DemoEvent[]>();
  #events: DemoEvent[] = [];
  #flushedAt = 0;
  #step = 0;

  /** @param tell receives events in the order in which they happened, with true if the rank waits behind them */
  constructor(
    { rank, settings: { strategy } }: Pick<DemoOrder, "rank" | "settings">,
    pace: Pace | undefined,
    tell: (events: readonly DemoEvent[], waits: boolean) => void,
  ) {
    this.#rank = rank;
    this.#strategy = strategy;
    this.#pace = pace;
    this.#tell = tell;
  }

  event(record: TraceRecord): void {
    const event = this.#read(record);
    if (event === undefined || this.isQuiet) return;
    this.#events.push(event);
    if (isMoment(event, this.#strategy)) this.#pace?.pass(this.#rank, () => this.#flush(true));
    if (performance.now() - this.#flushedAt > KEPT_MS) this.flushAll();
  }

  /** Does nothing: a page draws no kernels. */
  kernel(): void {}

  /** Does nothing: a page needs no event that a killed rank has not told. */
  flush(): void {}

  close(): void {
    this.flushAll();
  }

  /** Tells the events so far. */
  flushAll(): void {
    this.#flush(false);
  }

  #flush(waits: boolean): void {
    this.#flushedAt = performance.now();
    if (this.#events.length > 0) this.#tell(this.#events.splice(0), waits);
  }

  #read({ ph, tid, cat, name, ts, args }: TraceRecord): DemoEvent | undefined {
    if (typeof tid !== "number" || (ph !== "B" && ph !== "E")) return undefined;
    const open = this.#open.get(tid) ?? [];
    this.#open.set(tid, open);
    const time = performance.timeOrigin + Number(ts) / 1000;
    if (ph === "E") {
      const begun = open.pop();
      return begun && { ...begun, phase: "end", time, memory: this.memory() };
    }
    const [track, category] = [TRACKS[tid], SHOWN.find((one) => one === cat)];
    if (track === undefined || category === undefined || typeof name !== "string") return undefined;
    const { step, unit, bytes } = factsOf(args);
    if (typeof step === "number") this.#step = step;
    const event: DemoEvent = {
      ...{ phase: "begin", track, category, name, time, step: this.#step, memory: this.memory() },
      unit: typeof unit === "string" ? unit : "",
      ...typeof bytes === "number" ? { bytes } : {},
    };
    open.push(event);
    return event;
  }
}

/**
 * True where slow motion holds a rank:
 * - when tensors have moved or are freed, so that a picture shows where they are now;
 * - before a unit computes, whose parameters are then there;
 * - before a unit's gradients are reduced, as all of them are there then.
 */
export function isMoment({ phase, category, track, name }: DemoEvent, strategy: DemoSettings["strategy"]): boolean {
  if (category === "unit") return phase === "begin" && strategy === "ddp";
  if (category === "collective" && phase === "begin") return isReduction(name);
  return phase === "end" &&
    (category === "wait" || category === "free" ||
      (category === "collective" && (track !== "host" || isUpdate(name))));
}

function factsOf(args: unknown): Readonly<Record<string, unknown>> {
  return typeof args === "object" && args !== null ? { ...args } : {};
}
