/**
 * Events of a run in `events.jsonl`, an object a line, in their order: warnings of all ranks, saves, samples, memory, the end.
 *
 * @module
 */
import * as z from "zod";
import type { OwnedPeak } from "./run_record.ts";

/** A rank as the control plane knows it. */
export interface RankPlace {
  readonly rank: number;
  readonly state: "waiting" | "running" | "left" | "dead";
  /** The rank's newest call, in words; null before its first one. */
  readonly call: string | null;
  /** Step of that call. */
  readonly step: number | null;
}

/** Kinds of events with their facts. */
interface EventFacts {
  readonly start: { readonly step: number };
  readonly log: { readonly level: "warn" | "error"; readonly rank: number | null; readonly text: string };
  readonly saved: { readonly step: number; readonly path: string };
  readonly sample: { readonly step: number; readonly text: string };
  readonly memory: OwnedPeak & { readonly step: number };
  readonly ranks: { readonly ranks: readonly RankPlace[] };
  readonly end: { readonly step: number; readonly outcome: "finished" | "stopped" | "failed" };
}

/** Name of a kind of events. */
export type EventType = keyof EventFacts;

/** An event of a kind; `time` is in milliseconds since the epoch. */
export type EventOf<Type extends EventType> = EventFacts[Type] & { readonly type: Type; readonly time: number };

/** An event of a run. */
export type RunEvent = { readonly [Type in EventType]: EventOf<Type> }[EventType];

const time: z.ZodType<number> = z.number();
const step: z.ZodType<number> = z.int().nonnegative();
const terms: z.ZodType<OwnedPeak["terms"]> = z.record(z.string(), z.number());

const rankSchema: z.ZodType<RankPlace> = z.object({
  rank: z.int().nonnegative(),
  state: z.enum(["waiting", "running", "left", "dead"]),
  call: z.string().nullable(),
  step: z.number().nullable(),
});

const eventSchema: z.ZodType<RunEvent> = z.union([
  z.object({ type: z.literal("start"), time, step }),
  z.object({
    type: z.literal("log"),
    time,
    level: z.enum(["warn", "error"]),
    rank: z.int().nonnegative().nullable(),
    text: z.string(),
  }),
  z.object({ type: z.literal("saved"), time, step, path: z.string() }),
  z.object({ type: z.literal("sample"), time, step, text: z.string() }),
  z.object({
    type: z.literal("memory"),
    time,
    step,
    peakBytes: z.number(),
    terms,
    offloaded: z.object({ peakBytes: z.number(), terms }),
  }),
  z.object({ type: z.literal("ranks"), time, ranks: z.array(rankSchema) }),
  z.object({ type: z.literal("end"), time, step, outcome: z.enum(["finished", "stopped", "failed"]) }),
]);

/** The event of a line; undefined for a line that was cut off, or is none. */
export function parseRunEvent(line: string): RunEvent | undefined {
  try {
    return eventSchema.safeParse(JSON.parse(line)).data;
  } catch {
    return undefined;
  }
}

/** The events of a kind, in their order. */
export function eventsOfType<Type extends EventType>(
  events: readonly RunEvent[],
  type: Type,
): readonly EventOf<Type>[] {
  return events.filter((event): event is EventOf<Type> & RunEvent => event.type === type);
}
