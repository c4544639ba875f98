/**
 * `adapter_config.json`, as PEFT 0.21 reads and writes it: every key of it is read, refused by name, or kept as it is.
 *
 * @module
 */
import * as z from "zod";
import type { JsonObject } from "../json.ts";
import { CheckpointError, UnsupportedError } from "../errors.ts";
import { Linear } from "../nn/linear.ts";
import { VERSION } from "../version.ts";
import type { Lora, LoraOptions } from "./lora.ts";
import { ALL_LINEAR } from "./targets.ts";

/** The file of an adapter's settings. */
export const ADAPTER_CONFIG = "adapter_config.json";

const names = z.array(z.string());
const namesOrPattern = z.union([names, z.string()]);
const numbers = z.record(z.string(), z.number());

/** Keys that are read. */
const schema = z.object({
  peft_type: z.string(),
  base_model_name_or_path: z.string().nullish(),
  r: z.int().positive().default(8),
  lora_alpha: z.number().default(8),
  lora_dropout: z.number().min(0).max(1).default(0),
  target_modules: namesOrPattern.nullish(),
  exclude_modules: namesOrPattern.nullish(),
  modules_to_save: names.nullish(),
  layers_to_transform: z.union([z.array(z.int()), z.int()]).nullish(),
  layers_pattern: z.union([names, z.string()]).nullish(),
  use_rslora: z.boolean().default(false),
  rank_pattern: numbers.nullish(),
  alpha_pattern: numbers.nullish(),
  init_lora_weights: z.union([z.boolean(), z.string()]).default(true),
});

/** `init_lora_weights` values that do not change the base weights; an adapter of others fits only the weights that they changed. */
const HARMLESS_INITS: readonly (string | boolean)[] = [true, false, "gaussian", "eva", "orthogonal"];

/** Keys of what is not implemented. Each is refused unless it says that it is not used. */
const REFUSED = [
  "use_dora",
  "lora_bias",
  "layer_replication",
  "trainable_token_indices",
  "target_parameters",
  "megatron_config",
  "alora_invocation_tokens",
  "use_qalora",
  "use_bdlora",
  "arrow_config",
  "kasa_config",
  "velora_config",
  "monteclora_config",
  "lora_ga_config",
  "corda_config",
  "ensure_weight_tying",
] as const;

/** Keys that change nothing of a trained adapter's values. */
const KEPT = [
  "task_type",
  "revision",
  "peft_version",
  "auto_mapping",
  "inference_mode",
  "fan_in_fan_out",
  "megatron_core",
  "loftq_config",
  "eva_config",
  "qalora_group_size",
] as const;

/** The contents of an adapter's file. */
export interface AdapterFacts {
  readonly options: LoraOptions;
  /** The base model as PEFT knew it; undefined where the file names none. */
  readonly baseModel: string | undefined;
  /** Keys that this library does not read, to be written again. */
  readonly otherKeys: Readonly<Record<string, unknown>>;
  /** Names of those that PEFT 0.21 does not have either. */
  readonly unknownKeys: readonly string[];
}

/** True if a value means that an option is not used. */
function isUnused(value: unknown): boolean {
  return value === null || value === undefined || value === false ||
    (typeof value === "object" && Object.keys(value).length === 0);
}

/**
 * Reads the settings of an adapter.
 *
 * @param json a parsed `adapter_config.json`
 * @throws {UnsupportedError} for another kind of adapter, and for options that are not implemented, by name
 * @throws {CheckpointError} if a key has a value that PEFT does not write
 */
export function readAdapterConfig(json: JsonObject, file: string): AdapterFacts {
  const refuse = (what: string): never => {
    throw new UnsupportedError(`Cannot read the adapter of '${file}': ${what}`);
  };
  const type = json["peft_type"];
  if (typeof type === "string" && type !== "LORA") refuse(`its peft_type is '${type}', and only 'LORA' is implemented`);
  const parsed = schema.safeParse(json);
  if (!parsed.success) throw new CheckpointError(file, `Keys have wrong values: ${z.prettifyError(parsed.error)}`);
  const { data } = parsed;
  for (const key of REFUSED) {
    if (!isUnused(json[key])) refuse(`${key} ${JSON.stringify(json[key])} is not implemented`);
  }
  const { bias = "none" } = json;
  if (bias !== "none") refuse(`bias ${JSON.stringify(bias)} is not implemented, only "none"`);
  if (!HARMLESS_INITS.includes(data.init_lora_weights)) {
    refuse(
      `init_lora_weights ${
        JSON.stringify(data.init_lora_weights)
      } has changed the base model's weights; convert the adapter by ` +
        "PEFT (path_initial_model_for_weight_conversion of save_pretrained)",
    );
  }
  const { target_modules: targetModules } = data;
  if (targetModules == null) return refuse("it names no target_modules; list them");
  const read = new Set<string>([...Object.keys(schema.shape), "bias"]);
  const others = Object.entries(json).filter(([key]) => !read.has(key));
  const known: readonly string[] = [...KEPT, ...REFUSED];
  return {
    options: {
      r: data.r,
      loraAlpha: data.lora_alpha,
      loraDropout: data.lora_dropout,
      targetModules,
      useRslora: data.use_rslora,
      initLoraWeights: data.init_lora_weights === "gaussian" ? "gaussian" : true,
      ...data.exclude_modules == null ? {} : { excludeModules: data.exclude_modules },
      ...data.modules_to_save == null ? {} : { modulesToSave: data.modules_to_save },
      ...data.layers_to_transform == null ? {} : { layersToTransform: data.layers_to_transform },
      ...data.layers_pattern == null ? {} : { layersPattern: data.layers_pattern },
      ...data.rank_pattern == null ? {} : { rankPattern: data.rank_pattern },
      ...data.alpha_pattern == null ? {} : { alphaPattern: data.alpha_pattern },
    },
    baseModel: data.base_model_name_or_path ?? undefined,
    otherKeys: Object.fromEntries(others),
    unknownKeys: others.map(([key]) => key).filter((key) => !known.includes(key)),
  };
}

/** The `adapter_config.json` of an adapter, by which PEFT makes the same one. */
export function adapterConfigOf(lora: Lora): JsonObject {
  const { settings, layers } = lora;
  const linear = [...layers.values()].map(({ layer }) => layer).filter((layer) => layer instanceof Linear);
  const { task_type: task = "CAUSAL_LM", revision = null, ...others } = lora.otherKeys;
  return {
    alpha_pattern: settings.alphaPattern,
    auto_mapping: null,
    layer_replication: null,
    lora_bias: false,
    target_parameters: null,
    trainable_token_indices: null,
    use_dora: false,
    ...others,
    base_model_name_or_path: lora.baseModel ?? null,
    bias: "none",
    exclude_modules: settings.excludeModules ?? null,
    fan_in_fan_out: linear.some(({ layout }) => layout === "inOut"),
    inference_mode: true,
    init_lora_weights: settings.initLoraWeights,
    layers_pattern: settings.layersPattern ?? null,
    layers_to_transform: settings.layersToTransform ?? null,
    lora_alpha: settings.loraAlpha,
    lora_dropout: settings.loraDropout,
    modules_to_save: settings.modulesToSave ?? null,
    peft_type: "LORA",
    peft_version: `fullyshard ${VERSION}`,
    r: settings.r,
    rank_pattern: settings.rankPattern,
    revision,
    target_modules: targetsFor(lora),
    task_type: task,
    use_rslora: settings.useRslora,
  };
}

/** The targets in PEFT's form: as given; in place of `all-linear` the ends of names, if these choose the same number of modules. */
function targetsFor({ settings: { targetModules }, layers, model }: Lora): readonly string[] | string {
  if (typeof targetModules !== "string") return targetModules;
  if (targetModules.toLowerCase() !== ALL_LINEAR) return targetModules;
  const chosen = [...layers.keys()];
  const ends = [...new Set(chosen.map((name) => name.slice(name.lastIndexOf(".") + 1)))].sort();
  const byEnds = [...model.namedModules()].filter(([name]) =>
    ends.some((end) => name === end || name.endsWith(`.${end}`)) && !/\.lora_(?:A|B)$/.test(name)
  );
  return byEnds.length === chosen.length ? ends : chosen;
}
