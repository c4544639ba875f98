/**
 * The division of a model's blocks into stages: equal numbers of blocks, equal numbers of parameters, or numbers that are given.
 *
 * @module
 */
import { at } from "../at.ts";
import { ArgumentError, InternalError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import type { Module } from "../nn/module.ts";
import { numelOf } from "../shape.ts";
import { countOf } from "../words.ts";
import type { PipelineStage } from "./pipeline.ts";

/**
 * How blocks are divided into stages. `layers`: as many blocks for each stage, of which the first stages have one more where they do not
 * divide, as in transformers; `parameters`: so that the stage with the most parameters has as few as possible, embedding and head
 * counted; numbers: the blocks of each stage.
 */
export type PipelineSplit = "layers" | "parameters" | readonly number[];
/** Ways to divide blocks, by name. */
export const PIPELINE_SPLITS: readonly ["layers", "parameters"] = ["layers", "parameters"];

/**
 * Divides a model's blocks into stages.
 *
 * @param count number of stages
 * @throws {ArgumentError} if there are fewer blocks than stages, or given numbers do not add up to the blocks
 */
export function divideLayers(model: CausalLm, count: number, split: PipelineSplit): readonly PipelineStage[] {
  const { length } = model.layers;
  requireBlocks(length, count);
  const numbers = typeof split !== "string"
    ? requireNumbers(split, length, count)
    : split === "parameters"
    ? divideByCost(model.layers.map(numelBelow), endsOf(model), count)
    : Array.from({ length: count }, (_, stage) => Math.floor(length / count) + Number(stage < length % count));
  let end = 0;
  return numbers.map((number) => {
    const begin = end;
    end += number;
    return { begin, end };
  });
}

function requireBlocks(length: number, count: number): void {
  if (length >= count) return;
  throw new ArgumentError(
    `Cannot divide ${countOf(length, "block")} into ${
      countOf(count, "stage")
    }: each stage needs a block; give fewer stages`,
  );
}

function requireNumbers(numbers: readonly number[], length: number, count: number): readonly number[] {
  const isList = numbers.length === count && numbers.every((number) => Number.isInteger(number) && number >= 1);
  if (isList && numbers.reduce((sum, number) => sum + number, 0) === length) return numbers;
  throw new ArgumentError(
    `Cannot divide ${countOf(length, "block")} into stages of ${numbers.join(", ")}: give ${
      countOf(count, "number")
    } from 1 that add up ` +
      `to ${length}`,
  );
}

function numelBelow(module: Module): number {
  return [...module.parameters()].reduce((sum, { globalShape }) => sum + numelOf(globalShape), 0);
}

/** Parameters before the blocks, and behind them. */
function endsOf(model: CausalLm): readonly [before: number, behind: number] {
  const sum = (modules: readonly Module[]): number => modules.reduce((all, module) => all + numelBelow(module), 0);
  return [sum(model.parts.embeddings), sum(model.parts.tail)];
}

/**
 * Numbers of blocks by which the costliest stage costs least; of several such divisions, the one with the most blocks in the first
 * stages.
 *
 * @param costs of each block
 * @param ends costs of what is before the blocks, and behind them
 * @throws {ArgumentError} if there are fewer blocks than stages
 */
export function divideByCost(
  costs: readonly number[],
  [before, behind]: readonly [before: number, behind: number],
  count: number,
): readonly number[] {
  requireBlocks(costs.length, count);
  const sums = [0];
  for (const cost of costs) sums.push(at(sums, sums.length - 1, "sum") + cost);
  const costOf = (begin: number, end: number): number =>
    at(sums, end, "sum") - at(sums, begin, "sum") + (begin === 0 ? before : 0) + (end === costs.length ? behind : 0);
  // least[stage][begin]: the division of the blocks from `begin` on into the stages from `stage` on.
  let least = new Map<number, { readonly most: number; readonly numbers: readonly number[] }>();
  least.set(costs.length, { most: 0, numbers: [] });
  for (let stages = 1; stages <= count; stages++) {
    const next: typeof least = new Map();
    for (let begin = 0; begin <= costs.length - stages; begin++) {
      for (let end = costs.length - stages + 1; end > begin; end--) {
        const rest = least.get(end);
        if (rest === undefined) continue;
        const most = Math.max(costOf(begin, end), rest.most);
        const best = next.get(begin);
        if (best === undefined || most < best.most) next.set(begin, { most, numbers: [end - begin, ...rest.numbers] });
      }
    }
    least = next;
  }
  const found = least.get(0);
  if (found === undefined) throw new InternalError(`no division of ${costs.length} blocks into ${count} stages`);
  return found.numbers;
}
