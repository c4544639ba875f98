/**
 * Sentences of the log about a run: its world, model and data at the start, and the effect of a changed batch.
 *
 * @module
 */
import type { Logger } from "../runtime/log.ts";
import { countOf, formatBytes } from "../words.ts";
import type { RunConfig } from "./config.ts";
import type { StepEstimate } from "./estimate.ts";
import type { Run } from "./run.ts";
import type { TextData } from "./text_data.ts";

/** Tells of ranks, model, device and data before the first step. */
export function noticeStart(
  { strategy, precision, globalBatch, emaDecay, steps, warmupSteps = 0 }: RunConfig,
  { device, mesh: { axes, shape }, group: { kind, size } }: Pick<Run, "device" | "mesh" | "group">,
  { numParameters, peakBytes }: StepEstimate,
  { numSamples, description }: TextData,
  log: Logger,
): void {
  const laid = axes.length > 1 ? `${axes.map((name, i) => `${name} ${shape[i]}`).join(" × ")}, ${kind}` : kind;
  const ranks = `${strategy.toUpperCase()} over ${countOf(size, "rank")} (${laid})`;
  log.info(`${ranks}, ${countOf(numParameters, "parameter")}, ${precision}, about ${formatBytes(peakBytes)} a rank`);
  log.info(`On ${device.name}, ${device.detail}`);
  if (emaDecay !== undefined) {
    log.info(
      `Evaluations and the saved model use the averaged weights (emaDecay ${emaDecay}); checkpoints hold both`,
    );
  }
  if (warmupSteps > steps) {
    const share = `${(100 * steps / warmupSteps).toPrecision(2)} %`;
    log.warn(
      `The warm-up takes ${warmupSteps} steps, and the run ${steps}: the learning rate rises to ${share} of its peak`,
    );
  }
  const epoch = numSamples === undefined ? "" : `: an epoch is ${countOf(Math.ceil(numSamples / globalBatch), "step")}`;
  log.info(`${description}${epoch}`);
}

/** The effect of a changed global batch on the coming steps, for the log. */
export function otherBatch(
  { globalBatch, steps }: Pick<RunConfig, "globalBatch" | "steps">,
  step: number,
  cursor: number,
): string {
  const all = cursor + Math.max(0, steps - step) * globalBatch;
  return `: steps from ${step + 1} on take ${
    countOf(globalBatch, "sample")
  } each. Steps and the learning rate's schedule are ` +
    `counted on as before; ${countOf(all, "sample")} will have been taken by step ${steps}`;
}
