/**
 * The division of blocks into stages by what they cost to compute: a dry run of one forward tells the operations of each block, of what
 * is before the blocks, and of what is behind them.
 *
 * @module
 */
import { at } from "../at.ts";
import { noGrad } from "../autograd/mode.ts";
import { divideByCost } from "../axes/pipeline_split.ts";
import { isDry } from "../device/dry/device.ts";
import { InternalError } from "../errors.ts";
import { scope } from "../tensor/scope.ts";
import { forward } from "./backward.ts";
import type { StepConfig } from "./config.ts";
import { dryRun, type DryRunOptions } from "./dry_run.ts";
import { type ModelSource, openModel } from "./open_model.ts";

/** Operations of a forward of a model. */
export interface ForwardCosts {
  /** Of what is before the blocks. */
  readonly before: number;
  /** Of each block. */
  readonly blocks: readonly number[];
  /** Of what is behind the blocks: the head above all. */
  readonly behind: number;
}

/**
 * Counts the operations of a forward of one row, with its loss, on one rank. Weights have memory in the dry run alone.
 *
 * @param seq positions of the row
 */
export async function forwardCosts(
  source: ModelSource,
  seq: number,
  { device, cpuMath }: Pick<DryRunOptions, "device" | "cpuMath">,
): Promise<ForwardCosts> {
  /** Operations counted when each block began, and when it ended. */
  const counts: number[] = [];
  const place = { ...device === undefined ? {} : { device }, ...cpuMath === undefined ? {} : { cpuMath } };
  const { flops } = await dryRun(async (run) => {
    const { device } = run;
    if (!isDry(device)) throw new InternalError("a dry run on a device that computes");
    const model = await openModel(run, source);
    await model.load();
    const count = (): void => void counts.push([...device.uses.values()].reduce((sum, use) => sum + use.flops, 0));
    for (const block of model.layers) {
      block.registerForwardPreHook(count);
      block.registerForwardHook(count);
    }
    const row = { inputIds: new Int32Array(seq), labels: new Int32Array(seq), batch: 1, seq };
    return (): void => {
      counts.length = 0;
      using _frame = scope();
      noGrad(() => forward(model, row, device));
    };
  }, { worldSize: 1, ...place });
  const blocks = Array.from({ length: counts.length / 2 }, (_, i) => {
    return at(counts, 2 * i + 1, "count") - at(counts, 2 * i, "count");
  });
  return { before: at(counts, 0, "count"), blocks, behind: flops - at(counts, counts.length - 1, "count") };
}

/**
 * A configuration whose `ppLayers` say what `ppSplit` asks to be measured; any other as it is.
 *
 * @throws {ArgumentError} if there are fewer blocks than stages
 */
export async function withMeasuredStages<C extends StepConfig>(
  config: C,
  source: ModelSource,
  place: Pick<DryRunOptions, "device" | "cpuMath">,
): Promise<C> {
  const { ppSize, ppSchedule, ppStagesPerRank = ppSchedule === "interleaved" ? 2 : 1, ppSplit, ppLayers } = config;
  if (ppSize === 1 || ppSplit !== "flops" || ppLayers.length > 0) return config;
  const { before, blocks, behind } = await forwardCosts(source, config.sequenceLength, place);
  return { ...config, ppLayers: divideByCost(blocks, [before, behind], ppSize * ppStagesPerRank) };
}
