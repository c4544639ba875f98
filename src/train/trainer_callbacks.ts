/**
 * Callbacks of a program: steps, evaluations and saves of a run.
 *
 * @module
 */
import type { EvalMetrics, StepMetrics } from "./metrics.ts";
import type { StepContext } from "./step.ts";

/** `"stop"` on any rank saves a checkpoint and stops all ranks after this step, as after a signal. */
export type CallbackWish = void | "stop" | Promise<void | "stop">;

/** A checkpoint that is complete. */
export interface SavedStep {
  /** The checkpoint's folder. */
  readonly path: string;
  /** Steps taken. */
  readonly step: number;
}

/**
 * Functions that a run calls on every rank, in the order of the list, and awaits. An error ends the run on all ranks. What they
 * compute on tensors must be the same calls on every rank; what they print, rank 0 alone should (`context.group.rank`).
 */
export interface TrainerCallback {
  /** After each step, with the line of `metrics.jsonl`: behind an evaluation, and before a save of the step. */
  readonly onStep?: ((metrics: StepMetrics, context: StepContext) => CallbackWish) | undefined;
  /** After each evaluation, with its metrics: `eval_loss`, `eval_NAME_loss` and so on; the same on every rank. */
  readonly onEvaluate?: ((figures: EvalMetrics, step: number, context: StepContext) => CallbackWish) | undefined;
  /** Called when a checkpoint is complete on all ranks. A save in the background completes after a later step. */
  readonly onSave?: ((saved: SavedStep, context: StepContext) => void | Promise<void>) | undefined;
}

/** Calls one function of each callback; true if any asks to stop. */
export async function callAll<A extends readonly unknown[]>(
  functions: readonly (((...args: A) => CallbackWish) | undefined)[],
  ...args: A
): Promise<boolean> {
  let stops = false;
  for (const call of functions) if (await call?.(...args) === "stop") stops = true;
  return stops;
}
