/**
 * The training state in a checkpoint.
 *
 * @module
 */
import * as z from "zod";
import { type Packing, PACKINGS } from "../data/samples/rows.ts";
import type { StreamPlace } from "../data/stream/streamed_rows.ts";
import { CheckpointError } from "../errors.ts";
import type { BestState } from "./best_evaluation.ts";

/** The training state of a checkpoint, besides weights and optimizer: all else follows from the step. */
export interface SavedState {
  /** Settings that later steps depend on, by key. */
  readonly settings: Readonly<Record<string, string | number | boolean>>;
  /** The place in the data. */
  readonly data: {
    readonly cursor: number;
    readonly step?: number | undefined;
    readonly seed: number;
    readonly sequenceLength: number;
    readonly dataset: string;
    readonly packing?: Packing | undefined;
    readonly stream?: readonly StreamPlace[] | undefined;
  };
  /** The GradScaler's state, in float16. */
  readonly scaler?: {
    readonly scale: number;
    readonly growthTracker: number;
    readonly growthFactor: number;
    readonly backoffFactor: number;
    readonly growthInterval: number;
  } | undefined;
  /** The best evaluation so far. */
  readonly best?: BestState | undefined;
}

const stateSchema: z.ZodType<SavedState> = z.strictObject({
  settings: z.record(z.string(), z.union([z.string(), z.number(), z.boolean()])),
  data: z.strictObject({
    cursor: z.int(),
    step: z.int().optional(),
    seed: z.int(),
    sequenceLength: z.int(),
    dataset: z.string(),
    packing: z.enum(PACKINGS).optional(),
    stream: z.array(z.strictObject({
      ...{
        source: z.int(),
        lane: z.int(),
        given: z.int(),
        epoch: z.int(),
        window: z.int(),
        skip: z.int(),
        row: z.int(),
      },
    })).optional(),
  }),
  scaler: z.strictObject({
    scale: z.number(),
    growthTracker: z.int(),
    growthFactor: z.number(),
    backoffFactor: z.number(),
    growthInterval: z.int(),
  }).optional(),
  best: z.strictObject({
    metric: z.string(),
    best_metric: z.number(),
    best_global_step: z.int(),
    best_model_checkpoint: z.string().nullable(),
    evaluations_without_gain: z.int(),
  }).optional(),
});

/**
 * Checks a checkpoint's training state.
 *
 * @param path of the checkpoint, for messages
 * @throws {CheckpointError} if it is not the trainer's
 */
export function parseSavedState(state: unknown, path: string): SavedState {
  const parsed = stateSchema.safeParse(state);
  if (parsed.success) return parsed.data;
  const problem = z.prettifyError(parsed.error);
  throw new CheckpointError(path, `its training state is not one of this trainer: ${problem}`);
}
