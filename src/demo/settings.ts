/**
 * Settings of the demo: what a visitor chooses, the trainer's keys that follow from it, and the command that trains the same.
 *
 * @module
 */
import type { Section } from "../config/section.ts";
import { adapterSection } from "../train/adapter_config.ts";
import { axesSection } from "../train/axes_config.ts";
import { dataSection, parallelSection, type StepConfig, trainSection } from "../train/config.ts";
import { optimizerSection } from "../train/optimizer_config.ts";
import { outputSection } from "../train/output_config.ts";
import { preferenceSection } from "../train/preference_config.ts";

/** Settings that a visitor chooses. */
export interface DemoSettings {
  /** Number of ranks, 1 to {@link MOST_DEMO_RANKS}. */
  readonly ranks: number;
  readonly strategy: "fsdp" | "ddp";
  readonly reshardAfterForward: boolean;
  /** Gathers the next unit while the present one computes, forward and backward. */
  readonly prefetch: boolean;
  readonly checkpointing: boolean;
  readonly steps: number;
  readonly seed: number;
}

/** Most ranks of the demo. */
export const MOST_DEMO_RANKS = 8;

/** Least samples of a step; each rank has as many as each other. */
const LEAST_BATCH = 8;

/** Settings that the page begins with. */
export const FIRST_SETTINGS: DemoSettings = {
  ranks: 2,
  strategy: "fsdp",
  reshardAfterForward: true,
  prefetch: false,
  checkpointing: false,
  steps: 100,
  seed: 0,
};

/** The model that the demo trains, as a `config.json`. Tokens are bytes. */
export const DEMO_MODEL: Readonly<Record<string, string | number>> = {
  model_type: "llama",
  vocab_size: 257,
  hidden_size: 64,
  intermediate_size: 176,
  num_hidden_layers: 4,
  num_attention_heads: 4,
};

/** The trainer's keys, without model and text; all other keys have their defaults. */
function demoKeys(settings: DemoSettings): Readonly<Record<string, string | number | boolean>> {
  const { ranks, strategy, reshardAfterForward, prefetch, checkpointing, steps, seed } = settings;
  return {
    strategy,
    ...strategy === "fsdp" ? { fsdpPlan: "auto", reshardAfterForward } : {},
    ...strategy === "fsdp" && prefetch ? { backwardPrefetch: true, forwardPrefetch: true } : {},
    ...checkpointing ? { activationCheckpointing: "full" } : {},
    ...{
      globalBatch: ranks * Math.ceil(LEAST_BATCH / ranks),
      sequenceLength: 32,
      learningRate: 0.005,
      steps,
      seed,
      cpuMath: "wasm",
    },
  };
}

/** The command that trains the same from files of the model and the text, as its arguments. */
export function demoCommand(
  settings: DemoSettings,
  files: { readonly model: string; readonly data: string },
): string[] {
  const flags = Object.entries(demoKeys(settings)).flatMap(([key, value]) => {
    const flag = `--${key.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`)}`;
    return value === true ? [flag] : value === false ? [`${flag}=false`] : [flag, String(value)];
  });
  const ranks = ["--nproc-per-node", String(settings.ranks)];
  return ["fullyshard", "train", ...ranks, "--model", files.model, "--data", files.data, ...flags];
}

/**
 * The configuration of a step, as the trainer reads it from the same keys.
 *
 * @throws {z.ZodError} if a value is out of range
 */
export function demoConfig(settings: DemoSettings): StepConfig {
  const keys = Object.entries(demoKeys(settings));
  const read = <Value extends object>({ schema }: Section<Value>): Value =>
    schema.parse(Object.fromEntries(keys.filter(([name]) => Object.hasOwn(schema.shape, name))));
  return {
    ...read(dataSection),
    ...read(adapterSection),
    ...read(preferenceSection),
    ...read(parallelSection),
    ...read(axesSection),
    ...read(trainSection),
    ...read(optimizerSection),
    ...read(outputSection),
  };
}
