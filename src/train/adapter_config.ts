/**
 * The keys of a run that trains an adapter, and the options of LoRA that follow from them.
 *
 * @module
 */
import * as z from "zod";
import { addLora, loraOf, type LoraOptions } from "../adapters/lora.ts";
import { quantizeModel } from "../adapters/quantize.ts";
import { ALL_LINEAR } from "../adapters/targets.ts";
import { needs } from "../config/needs.ts";
import { type Section, section } from "../config/section.ts";
import { ArgumentError, ConfigError, type ConfigProblem, UnsupportedError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { path } from "./config_values.ts";

/**
 * The adapter that is trained, if any.
 *
 * @internal
 */
export interface AdapterConfig {
  readonly adapter?: string | undefined;
  readonly loraR?: number | undefined;
  readonly loraAlpha?: number | undefined;
  readonly loraDropout?: number | undefined;
  readonly loraTargetModules: readonly string[];
  readonly loraExcludeModules: readonly string[];
  readonly loraModulesToSave: readonly string[];
  readonly useRslora: boolean;
  readonly frozenDtype: "file" | "float32" | "bfloat16" | "float16";
  readonly loadIn4bit: boolean;
  readonly loadIn8bit: boolean;
  readonly bnb4bitQuantType: "nf4";
  readonly bnb4bitUseDoubleQuant: boolean;
}

const names = z.array(z.string().min(1));

/** Keys of adapters. */
export const adapterSection: Section<AdapterConfig> = section(
  "adapter",
  z.strictObject({
    adapter: path.optional().describe(
      "Folder of a PEFT adapter of the model, to be applied and trained further",
    ).meta({ otherNames: ["adapter-name-or-path", "peft-model", "lora-path"] }),
    loraR: z.int().positive().optional().describe(
      "Train a LoRA adapter of this rank, and freeze the model (default: train all of the model)",
    ).meta({ otherNames: ["lora-rank", "use-peft", "lora"] }),
    loraAlpha: z.number().positive().optional().describe(
      "LoRA: multiply the adapter's output by alpha / r (default: 8)",
    ),
    loraDropout: z.number().min(0).lt(1).optional().describe(
      "LoRA: probability that an element of the adapter's input becomes zero in training (default: 0)",
    ),
    loraTargetModules: names.default([]).describe(
      "LoRA: layers that get an adapter: ends of their names, separated by commas, a regular expression, or all-linear (default)",
    ).meta({ otherNames: ["target-modules", "lora-target", "lora-targets"] }),
    loraExcludeModules: names.default([]).describe("LoRA: ends of names of layers that get no adapter").meta({
      otherNames: ["exclude-modules"],
    }),
    loraModulesToSave: names.default([]).describe("LoRA: ends of names of modules that are trained in full")
      .meta({
        otherNames: ["modules-to-save"],
      }),
    useRslora: z.boolean().default(false).describe("LoRA: multiply the adapter's output by alpha / √r instead"),
    frozenDtype: z.enum(["file", "float32", "bfloat16", "float16"]).default("file").describe(
      "Storage dtype of frozen sharded weights: file: as in their file; or one dtype",
    ).meta({ otherNames: ["base-dtype"] }),
    loadIn4bit: z.boolean().default(false).describe(
      "With an adapter: keep frozen linear layers in 4 bits an element (QLoRA)",
    ).meta({ otherNames: ["load-4bit", "qlora", "use-4bit"] }),
    loadIn8bit: z.boolean().default(false).describe("With an adapter: keep frozen linear layers in 8 bits an element")
      .meta({ otherNames: ["load-8bit", "use-8bit"] }),
    bnb4bitQuantType: z.enum(["nf4"]).default("nf4").describe("With loadIn4bit: the 4-bit code"),
    bnb4bitUseDoubleQuant: z.boolean().default(false).describe(
      "With loadIn4bit: quantize the factors of blocks to 8 bits too",
    ).meta({ otherNames: ["use-nested-quant", "double-quant"] }),
  }),
);

/** Characters that make a value a regular expression, not the end of a name. */
const IS_PATTERN = /[\\*+?()[\]{}|^$]/;

/** The names in one value: those between its commas, unless it is a regular expression. */
function namesIn(value: string): readonly string[] {
  return IS_PATTERN.test(value) ? [value] : value.split(",").map((name) => name.trim()).filter((name) => name !== "");
}

/**
 * The options of the adapter that a run makes; undefined if it makes none.
 *
 * @throws {ConfigError} for keys of an adapter without `loraR`, for `frozenDtype` if nothing is frozen, and for `loraR` beside an
 * existing adapter
 */
export function loraOptionsOf(config: AdapterConfig): LoraOptions | undefined {
  const { adapter, loraR, loraAlpha, loraDropout, useRslora } = config;
  const loraTargetModules = config.loraTargetModules.flatMap(namesIn);
  const loraExcludeModules = config.loraExcludeModules.flatMap(namesIn);
  const loraModulesToSave = config.loraModulesToSave.flatMap(namesIn);
  const problems: ConfigProblem[] = [];
  const others = {
    ...{ loraAlpha, loraDropout, loraTargetModules, loraExcludeModules, loraModulesToSave },
    useRslora: useRslora ? true : undefined,
  };
  for (const [path, value] of Object.entries(others)) {
    const isGiven = Array.isArray(value) ? value.length > 0 : value !== undefined;
    if (!isGiven || loraR !== undefined) continue;
    problems.push(needs(path, "loraR", value));
  }
  if (config.frozenDtype !== "file" && loraR === undefined && adapter === undefined) {
    problems.push(needs("frozenDtype", "loraR or adapter", config.frozenDtype));
  }
  problems.push(...quantizationProblems(config));
  if (adapter !== undefined && loraR !== undefined) {
    const got = `both; remove loraR: '${adapter}' already has a rank`;
    problems.push({ path: "loraR", expected: "either adapter or loraR", got });
  }
  const patterns = loraTargetModules.filter((one) => IS_PATTERN.test(one));
  if (patterns.length > 0 && loraTargetModules.length > 1) {
    const expected = "one regular expression, or ends of names";
    problems.push({ path: "loraTargetModules", expected, got: JSON.stringify(loraTargetModules) });
  }
  if (problems.length > 0) throw new ConfigError(problems);
  if (loraR === undefined) return undefined;
  const [first] = loraTargetModules;
  const isOne = first === undefined || patterns.length > 0 || first.toLowerCase() === ALL_LINEAR;
  return {
    r: loraR,
    ...loraAlpha === undefined ? {} : { loraAlpha },
    ...loraDropout === undefined ? {} : { loraDropout },
    targetModules: isOne ? first ?? ALL_LINEAR : loraTargetModules,
    ...loraExcludeModules.length === 0 ? {} : { excludeModules: loraExcludeModules },
    ...loraModulesToSave.length === 0 ? {} : { modulesToSave: loraModulesToSave },
    useRslora,
  };
}

function quantizationProblems(config: AdapterConfig): readonly ConfigProblem[] {
  const { adapter, loraR, frozenDtype, loadIn4bit, loadIn8bit, bnb4bitUseDoubleQuant } = config;
  const problems: ConfigProblem[] = [];
  const [asked] = [...loadIn4bit ? ["loadIn4bit"] : [], ...loadIn8bit ? ["loadIn8bit"] : []];
  if (asked !== undefined && loraR === undefined && adapter === undefined) {
    problems.push(needs(asked, "loraR or adapter", true));
  }
  if (loadIn4bit && loadIn8bit) {
    problems.push({ path: "loadIn8bit", expected: "loadIn4bit or loadIn8bit", got: "both" });
  }
  if (bnb4bitUseDoubleQuant && !loadIn4bit) {
    problems.push(needs("bnb4bitUseDoubleQuant", "loadIn4bit", true));
  }
  if (asked !== undefined && frozenDtype !== "file") {
    const got = `'${frozenDtype}' and ${asked}: weights that are not quantized keep their file's dtype`;
    problems.push({ path: "frozenDtype", expected: "'file' with quantized weights", got });
  }
  return problems;
}

/**
 * Adds the adapter that a run makes, to a model that has none, and has its frozen layers quantized where that is asked for.
 *
 * @param baseModel the model as users named it, for the adapter's files; undefined where it begins from a config
 * @throws {ConfigError} as {@link loraOptionsOf}
 * @throws {ConfigError} with the words of `addLora` where it refuses the modules that were chosen
 */
export function adapt(model: CausalLm, config: AdapterConfig, baseModel: string | undefined): void {
  const options = loraOptionsOf(config);
  if (options !== undefined) {
    try {
      addLora(model, options).baseModel = baseModel;
    } catch (cause) {
      // These are words on what the user has chosen, and no fault of a program that needs its stack.
      if (!(cause instanceof ArgumentError || cause instanceof UnsupportedError)) throw cause;
      const expected = "modules of the model that can have an adapter";
      throw new ConfigError([{
        path: "loraTargetModules, loraExcludeModules, loraModulesToSave",
        ...{ expected, got: cause.message },
      }]);
    }
  }
  const { loadIn4bit, loadIn8bit, bnb4bitQuantType, bnb4bitUseDoubleQuant } = config;
  if (!loadIn4bit && !loadIn8bit) return;
  quantizeModel(model, { loadIn4bit, loadIn8bit, bnb4bitQuantType, bnb4bitUseDoubleQuant });
}

/** The factor of each adapter's product: one number, or one for each layer where they differ; nothing without adapters. */
export function adapterScales(model: CausalLm): { readonly loraScale?: number | string } {
  const scales = Array.from(loraOf(model)?.layers ?? [], ([name, { factors: { scale } }]) => ({ name, scale }));
  const [first] = scales;
  if (first === undefined) return {};
  if (scales.every(({ scale }) => scale === first.scale)) return { loraScale: first.scale };
  return { loraScale: scales.map(({ name, scale }) => `${name} ${scale}`).join(", ") };
}

/** Settings of a model with an adapter that checkpoints have where they are not the default. */
export const ADAPTER_SETTINGS:
  readonly ("loraDropout" | "frozenDtype" | "loadIn4bit" | "loadIn8bit" | "bnb4bitUseDoubleQuant")[] = [
    "loraDropout",
    "frozenDtype",
    "loadIn4bit",
    "loadIn8bit",
    "bnb4bitUseDoubleQuant",
  ];

/** The {@link ADAPTER_SETTINGS} of a run; none without an adapter. */
export function adapterSettings(
  model: CausalLm,
  config: AdapterConfig,
): Readonly<Record<string, string | number | boolean>> {
  const lora = loraOf(model);
  if (lora === undefined) return {};
  const values = { ...config, loraDropout: lora.settings.loraDropout };
  const isUsual = (value: unknown): boolean => value === 0 || value === false || value === "file";
  return Object.fromEntries(
    ADAPTER_SETTINGS.map((key) => [key, values[key]] as const).filter(([, value]) => !isUsual(value)),
  );
}

/**
 * Refuses to resume if the adapter's scale differs from the checkpoint's: the model would be different.
 *
 * @throws {ConfigError}
 */
export function requireSameScales(model: CausalLm, saved: Readonly<Record<string, unknown>>): void {
  const { loraScale } = adapterScales(model);
  const before = saved["loraScale"];
  if (before === undefined || before === loraScale) return;
  const expected = `the adapter multiplied by ${before} (alpha / r, with useRslora alpha / √r), as in the checkpoint`;
  throw new ConfigError([{ path: "loraAlpha", expected, got: String(loraScale) }]);
}

/** True if a model's weights stay unchanged, and only an adapter is trained. */
export function hasAdapter(model: CausalLm): boolean {
  return loraOf(model) !== undefined;
}
