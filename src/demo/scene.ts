/**
 * The state of a rank as its trace tells it: which units it holds in full, what it does now, its memory, and the spans of a step.
 *
 * @module
 */
import { type MemoryTerms, NO_TERMS } from "../device/allocator.ts";
import type { Track } from "../runtime/trace.ts";
import { type DemoEvent, isReduction, isUpdate } from "./events.ts";
import type { DemoSettings } from "./settings.ts";

/** The part of an array that a rank holds: nothing, its own part, or all of it. */
export type HeldPart = "none" | "own" | "all";

/** Work that is drawn. */
export type Activity = "gather" | "forward" | "backward" | "reduce" | "free" | "update";

/** A unit on a rank. */
export interface UnitState {
  parameters: HeldPart;
  gradients: HeldPart;
  optimizer: HeldPart;
  /** The work that goes on. */
  activity: Activity | undefined;
}

/** Work of a rank at a moment. */
export interface Moment {
  readonly activity: Activity;
  readonly unit: string;
  /** True in the backward. */
  readonly isBackward: boolean;
  /** The call's name, as `all-reduce loss`; empty for computation. */
  readonly call: string;
  /** True for computation that has ended. */
  readonly isDone?: boolean;
}

/** The begin of a span that waits. */
export const NOT_YET: number = Infinity;

/** A span of a step, in milliseconds of the ranks' clock. */
export interface SceneSpan {
  readonly track: Track;
  readonly activity: Activity;
  readonly name: string;
  begin: number;
  end: number | undefined;
}

/** A rank as its trace tells it. */
export class RankScene {
  readonly units: ReadonlyMap<string, UnitState>;
  memory: MemoryTerms = NO_TERMS;
  /** Memory at the highest moment so far. */
  most: MemoryTerms = NO_TERMS;
  step = 0;
  moment: Moment | undefined;
  /** Spans of the step under way, and of the step before. */
  spans: SceneSpan[] = [];
  lastSpans: readonly SceneSpan[] = [];
  readonly #strategy: DemoSettings["strategy"];
  readonly #open = new Map<string, SceneSpan>();
  /** Units whose gathers are under way. */
  readonly #gathering = new Set<string>();
  #computes: "forward" | "backward" = "forward";

  constructor(units: readonly string[], strategy: DemoSettings["strategy"]) {
    this.#strategy = strategy;
    const parameters = this.#rest;
    this.units = new Map(units.map((name) => [
      name,
      { parameters, gradients: "none", optimizer: "none", activity: undefined },
    ]));
  }

  /** The part of each unit that a rank holds between uses. */
  get #rest(): HeldPart {
    return this.#strategy === "fsdp" ? "own" : "all";
  }

  /** Takes the next event of the rank. */
  apply(event: DemoEvent): void {
    this.memory = event.memory;
    if (totalOf(event.memory) > totalOf(this.most)) this.most = event.memory;
    if (event.category === "step") {
      if (event.phase === "begin") this.#beginStep(event.step);
      return;
    }
    const unit = this.units.get(event.unit);
    if (event.category === "unit") this.#compute(event, unit);
    else if (event.category === "wait") this.#waited(event, unit);
    else this.#move(event, unit);
  }

  /** The step has ended: the optimizer has states of all that the rank updates. */
  endStep(): void {
    for (const unit of this.units.values()) {
      unit.optimizer = this.#rest;
      unit.activity = undefined;
    }
    this.moment = undefined;
  }

  #beginStep(step: number): void {
    this.step = step;
    this.moment = undefined;
    this.lastSpans = this.spans;
    this.spans = [];
    this.#open.clear();
    for (const unit of this.units.values()) unit.gradients = "none";
  }

  #compute({ phase, name, unit: unitName, track, time }: DemoEvent, unit: UnitState | undefined): void {
    const activity = name.startsWith("forward") ? "forward" : "backward";
    this.#mark(phase, { track, activity, name, begin: time, end: undefined }, time);
    if (phase === "begin") {
      this.#computes = activity;
      this.#now({ activity, unit: unitName, isBackward: activity === "backward", call: "" }, unit);
    } else if (unit !== undefined) {
      unit.activity = undefined;
      if (activity === "backward" && unit.gradients === "none") unit.gradients = "all";
    }
  }

  /** A unit's parameters are there, so it computes. */
  #waited({ phase, unit: unitName, time }: DemoEvent, unit: UnitState | undefined): void {
    const activity = this.#computes;
    // A unit's span in the trace begins before its wait. It is drawn from the wait's end, as the unit computes only then.
    for (const span of this.#computing(unitName)) span.begin = phase === "begin" ? NOT_YET : time;
    if (phase === "begin") return;
    this.#now({ activity, unit: unitName, isBackward: activity === "backward", call: "" }, unit);
  }

  #move({ phase, category, track, name, unit: unitName, time }: DemoEvent, unit: UnitState | undefined): void {
    const activity = category === "free" ? "free" : activityOf(track, name);
    if (activity === undefined) return;
    // Before the first step a write is of first values, and no optimizer has states.
    if (activity === "update" && this.step === 0) return;
    this.#mark(phase, { track, activity, name, begin: time, end: undefined }, time);
    if (phase === "begin") {
      if (activity === "gather") {
        this.#gathering.add(unitName);
        if (unit !== undefined) unit.activity = "gather";
        return;
      }
      // It has computed, though its span in the trace ends later, and no gradient leaves a first unit of a replicated model.
      for (const span of this.#computing(unit === undefined ? undefined : unitName)) span.end = time;
      if (isReduction(name)) this.#reduceBegins(unitName, unit);
      return;
    }
    this.#gathering.delete(unitName);
    if (unit !== undefined) {
      if (activity === "reduce") unit.gradients = "own";
      if (activity === "gather") unit.parameters = "all";
      if (activity === "free") unit.parameters = "own";
      if (activity === "update") unit.optimizer = this.#rest;
    }
    const isBackward = this.#computes === "backward";
    this.#now({ activity, unit: unitName, isBackward, call: category === "free" ? "" : name }, unit);
  }

  /** The backward of a unit is done when its gradients are reduced. Those of a replicated model may be reduced all at once. */
  #reduceBegins(unitName: string, unit: UnitState | undefined): void {
    for (const one of unit === undefined ? this.units.values() : [unit]) one.gradients = "all";
    this.#now({ activity: "backward", unit: unitName, isBackward: true, call: "", isDone: true }, unit);
  }

  #now(moment: Moment, unit: UnitState | undefined): void {
    for (const [name, other] of this.units) if (!this.#gathering.has(name)) other.activity = undefined;
    this.moment = moment;
    if (unit !== undefined) unit.activity = moment.activity;
  }

  /** Spans of computation that have not ended, of a unit or of all. */
  #computing(unitName: string | undefined): readonly SceneSpan[] {
    return [...this.#open.values()].filter(({ activity, name, end }) =>
      (activity === "forward" || activity === "backward") && end === undefined &&
      (unitName === undefined || name === `${activity} ${unitName}`)
    );
  }

  #mark(phase: DemoEvent["phase"], span: SceneSpan, time: number): void {
    const key = `${span.track} ${span.name}`;
    if (phase === "begin") {
      this.spans.push(span);
      this.#open.set(key, span);
      return;
    }
    const open = this.#open.get(key);
    if (open !== undefined) open.end ??= time;
    this.#open.delete(key);
  }
}

/** Bytes of all kinds. */
export function totalOf(terms: MemoryTerms): number {
  return Object.values(terms).reduce((sum, bytes) => sum + bytes, 0);
}

function activityOf(track: Track, name: string): Activity | undefined {
  if (track === "gather") return "gather";
  if (track === "reduce") return "reduce";
  return isUpdate(name) ? "update" : undefined;
}
