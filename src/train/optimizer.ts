/**
 * The optimizer of a run: the groups of a model's parameters, its schedule, and the settings that the configuration gives.
 *
 * @module
 */
import { needs } from "../config/needs.ts";
import { ConfigError, type ConfigProblem } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import type { Optimizer } from "../optim/optimizer.ts";
import { type NamedGroup, optimizerNamed } from "../optim/registry.ts";
import { type Schedule, SCHEDULES } from "../optim/schedule.ts";
import { hasAdapter } from "./adapter_config.ts";
import { PEAK_LEARNING_RATES, type TrainConfig, usualWarmupSteps } from "./config.ts";
import type { OptimizerConfig } from "./optimizer_config.ts";
import type { PreferenceConfig } from "./preference_config.ts";

/** Names of parameters that `decayOn: weights` leaves out: transformers' patterns, which are compared without regard to case. */
const NO_DECAY = /bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)/i;

/** Settings of a run that decide its optimizer. */
export type OptimizerSettingsOfRun = TrainConfig & OptimizerConfig & Pick<PreferenceConfig, "preference">;

/**
 * The groups of a model's trained parameters: by learning rate, decay, and whether they are matrices within layers.
 *
 * @throws {ConfigError} for a pattern that fits no parameter
 */
function parameterGroups(model: CausalLm, config: OptimizerSettingsOfRun, learningRate: number): NamedGroup[] {
  const { decayOn, weightDecay, learningRateFactors = {} } = config;
  const patterns = Object.entries(learningRateFactors).map(([text, factor]) => ({
    text,
    factor,
    pattern: patternOf(text),
  }));
  const trained = [...model.parameters()].filter(({ requiresGrad }) => requiresGrad);
  const inLayers = new Set(model.layers.flatMap((layer) => [...layer.parameters()]));
  const problems = patterns.filter(({ pattern }) => !trained.some(({ fqn }) => pattern.test(fqn))).map(
    (one): ConfigProblem => {
      return {
        path: "learningRateFactors",
        expected: "patterns that fit a trained parameter",
        got: `'${one.text}', which fits none`,
      };
    },
  );
  if (problems.length > 0) throw new ConfigError(problems);
  const groups = Map.groupBy(trained, (parameter) => {
    const factor = patterns.find(({ pattern }) => pattern.test(parameter.fqn))?.factor ?? 1;
    const isDecayed = decayOn === "all" || !NO_DECAY.test(parameter.fqn);
    const isHidden = parameter.globalShape.length === 2 && inLayers.has(parameter);
    return JSON.stringify([factor, isDecayed, isHidden && config.optimizer === "muon"]);
  });
  return Array.from(groups, ([key, parameters]): NamedGroup => {
    const [factor, isDecayed, isHidden]: [number, boolean, boolean] = JSON.parse(key);
    return { parameters, learningRate: learningRate * factor, weightDecay: isDecayed ? weightDecay : 0, isHidden };
  });
}

function patternOf(text: string): RegExp {
  try {
    return new RegExp(text);
  } catch {
    throw new ConfigError([{ path: "learningRateFactors", expected: "a regular expression", got: `'${text}'` }]);
  }
}

/** The schedule of a run. Where the warm-up is longer than the run, steps have the rates of its beginning, as transformers' have. */
export function scheduleOf(config: OptimizerSettingsOfRun): Schedule {
  const { schedule, steps, warmupSteps = usualWarmupSteps(steps), minLrRate } = config;
  const decaySteps = warmupSteps > steps ? 0 : config.decaySteps;
  return SCHEDULES[schedule]({
    ...{ steps: Math.max(steps, warmupSteps), warmupSteps, minRatio: minLrRate, decaySteps },
    ...{ cycles: config.scheduleCycles, power: config.schedulePower },
  });
}

/** The peak learning rate of a run that names none, for AdamW. */
function usualRate(model: CausalLm, { preference }: Pick<PreferenceConfig, "preference">): number {
  if (preference !== undefined) return PEAK_LEARNING_RATES[hasAdapter(model) ? "preferenceAdapter" : "preference"];
  const usual = model.files?.folder === undefined ? "fromScratch" : "fineTuning";
  return PEAK_LEARNING_RATES[hasAdapter(model) ? "adapter" : usual];
}

/**
 * The optimizer of a run.
 *
 * @throws {ConfigError} if a key means nothing to the optimizer, or a pattern fits no parameter
 */
export function optimizerOf(model: CausalLm, config: OptimizerSettingsOfRun): Optimizer {
  const entry = optimizerNamed(config.optimizer);
  const { beta1, beta2, momentum, adjustLr, emaDecay, emaStart } = config;
  const problems = Object.entries({ beta2, momentum }).flatMap(([path, value]): ConfigProblem[] => {
    if (value === undefined || entry.reads.some((key) => key === path)) return [];
    return [{ path, expected: `nothing, as '${config.optimizer}' has none`, got: String(value) }];
  });
  if (emaStart !== undefined && emaDecay === undefined) {
    problems.push(needs("emaStart", "emaDecay", emaStart));
  }
  if (problems.length > 0) throw new ConfigError(problems);
  const { learningRate = usualRate(model, config) * entry.lrMultiplier } = config;
  const groups = parameterGroups(model, config, learningRate);
  return entry.make(groups, { schedule: scheduleOf(config), beta1, beta2, momentum, adjustLr, emaDecay, emaStart });
}
