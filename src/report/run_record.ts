/**
 * The run record, `run.json`: facts of a run that are known at its start.
 *
 * @module
 */
import * as z from "zod";

/** Version of the format. */
export const RECORD_VERSION = 1;

/** Bytes by owner. */
export type OwnedBytes = Readonly<Record<string, number>>;

/** Most memory in use at once, by owner. */
export interface OwnedPeak {
  readonly peakBytes: number;
  readonly terms: OwnedBytes;
  /** Memory of what is offloaded to the host, at its own peak. */
  readonly offloaded: { readonly peakBytes: number; readonly terms: OwnedBytes };
}

/** The dry run's figures of a step on rank 0. */
export interface PredictedStep extends OwnedPeak {
  readonly flops: number;
  readonly bytesCommunicated: number;
  /** Number of calls that move tensors. */
  readonly collectives: number;
}

/** A unit of the sharding tree; numbers count elements. */
export interface RecordedUnit {
  readonly name: string;
  /** Number of units around it. */
  readonly depth: number;
  readonly numParameters: number;
  readonly numel: number;
  readonly padding: number;
  readonly worldSize: number;
  readonly replicas: number;
  readonly bytesPerRank: number;
  readonly dtypes: {
    readonly storage: string;
    readonly compute: string;
    readonly reduce: string;
    readonly master: string;
    readonly gradient: string;
  };
  readonly reshardAfterForward: boolean | number;
}

/** Facts of a run that are known at its start. */
export interface RunRecord {
  readonly version: typeof RECORD_VERSION;
  /** Milliseconds since the epoch. */
  readonly started: number;
  /** Milliseconds since the epoch at which rank 0's process began, as its trace has it. */
  readonly origin: number;
  /** Step that the run went on from; 0 for a new one. */
  readonly firstStep: number;
  /** The checkpoint that it went on from. */
  readonly resumed: string | null;
  readonly name: string;
  /** Values by key; keys without a value are left out. */
  readonly config: Readonly<Record<string, unknown>>;
  /** Origins of keys that were set, such as `--steps`; all other keys have their defaults. Null if nothing is known of them. */
  readonly set: Readonly<Record<string, string>> | null;
  readonly versions: { readonly fullyshard: string; readonly runtime: string; readonly runtimeVersion: string };
  readonly environment: {
    /** Null where it may not be asked for. */
    readonly host: string | null;
    readonly os: string;
    readonly arch: string;
    readonly cores: number;
    readonly device: string;
    readonly deviceDetail: string;
  };
  readonly world: {
    readonly size: number;
    readonly backend: string;
    readonly axes: readonly { readonly name: string; readonly size: number }[];
  };
  readonly model: { readonly className: string; readonly numParameters: number };
  /** `numSamples` is not known of data that is streamed. */
  readonly data: { readonly description: string; readonly numSamples?: number | undefined };
  /** Units of the sharded model, the root's first; null if it is replicated. */
  readonly sharding: readonly RecordedUnit[] | null;
  readonly predicted: PredictedStep;
}

const bytes: z.ZodType<number> = z.number().nonnegative();
const count: z.ZodType<number> = z.int().nonnegative();
const terms: z.ZodType<OwnedBytes> = z.record(z.string(), bytes);

const dtypesSchema: z.ZodType<RecordedUnit["dtypes"]> = z.object({
  storage: z.string(),
  compute: z.string(),
  reduce: z.string(),
  master: z.string(),
  gradient: z.string(),
});

const unitSchema: z.ZodType<RecordedUnit> = z.object({
  name: z.string(),
  depth: count,
  numParameters: count,
  numel: count,
  padding: count,
  worldSize: count,
  replicas: z.number(),
  bytesPerRank: bytes,
  dtypes: dtypesSchema,
  reshardAfterForward: z.union([z.boolean(), z.number()]),
});

const recordSchema: z.ZodType<RunRecord> = z.object({
  version: z.literal(RECORD_VERSION),
  started: z.number(),
  origin: z.number(),
  firstStep: count,
  resumed: z.string().nullable(),
  name: z.string(),
  config: z.record(z.string(), z.unknown()),
  set: z.record(z.string(), z.string()).nullable(),
  versions: z.object({ fullyshard: z.string(), runtime: z.string(), runtimeVersion: z.string() }),
  environment: z.object({
    host: z.string().nullable(),
    os: z.string(),
    arch: z.string(),
    cores: count,
    device: z.string(),
    deviceDetail: z.string(),
  }),
  world: z.object({
    size: count,
    backend: z.string(),
    axes: z.array(z.object({ name: z.string(), size: count })),
  }),
  model: z.object({ className: z.string(), numParameters: count }),
  data: z.object({ description: z.string(), numSamples: count.optional() }),
  sharding: z.array(unitSchema).nullable(),
  predicted: z.object({
    peakBytes: bytes,
    terms,
    offloaded: z.object({ peakBytes: bytes, terms }),
    flops: bytes,
    bytesCommunicated: bytes,
    collectives: count,
  }),
});

/**
 * The record in a text.
 *
 * @returns the record, or a sentence about the fault of the text
 */
export function parseRunRecord(text: string): RunRecord | { readonly wrong: string } {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return { wrong: "it is not JSON" };
  }
  const parsed = recordSchema.safeParse(value);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  return { wrong: `${issue?.path.join(".") || "the record"}: ${issue?.message ?? "invalid"}` };
}
