/**
 * Adding LoRA to a model: which layers get it, and what is trained then.
 *
 * @module
 */
import { requireSwitch } from "../config/known_values.ts";
import { type KnownKeys, requireKnownKeys } from "../config/known_keys.ts";
import { didYouMean } from "../config/nearest.ts";
import { ArgumentError, UnsupportedError } from "../errors.ts";
import { Embedding } from "../nn/embedding.ts";
import { drawParameters } from "../nn/initialize.ts";
import { valueText } from "../words.ts";
import { type HookHandle, Module, requireModule } from "../nn/module.ts";
import { requireProbability } from "../ops/dropout.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { EmbeddingLora, LinearLora, type LoraLayer } from "./lora_layer.ts";
import { byPattern, savedModulesOf, type TargetOptions, targetsOf } from "./targets.ts";

/** Options of {@link addLora}, by the names of PEFT's `LoraConfig`. */
export interface LoraOptions extends TargetOptions {
  /** Rank of the product. @default 8 */
  readonly r?: number;
  /** The product is multiplied by `loraAlpha / r`. @default 8 */
  readonly loraAlpha?: number;
  /** Probability that an element of an adapter's input becomes zero in training. @default 0 */
  readonly loraDropout?: number;
  /** Multiplies by `loraAlpha / √r` instead (Kalajdzievski 2023). @default false */
  readonly useRslora?: boolean;
  /** Ranks of some modules: ends of names, or regular expressions, with a rank each. @default none differs */
  readonly rankPattern?: Readonly<Record<string, number>>;
  /** Likewise for `loraAlpha`. @default none differs */
  readonly alphaPattern?: Readonly<Record<string, number>>;
  /** The values that first factors begin with: true is Kaiming uniform with a = √5; second factors are zeros. @default true */
  readonly initLoraWeights?: true | "gaussian";
}

/** Names of the options of {@link addLora}. */
const KNOWN_OPTIONS: KnownKeys<LoraOptions> = {
  ...{ r: true, loraAlpha: true, loraDropout: true, useRslora: true, rankPattern: true, alphaPattern: true },
  ...{ initLoraWeights: true, targetModules: true, excludeModules: true, modulesToSave: true },
  ...{ layersToTransform: true, layersPattern: true },
};

/** Options with nothing left open. */
export type LoraSettings = Required<LoraOptions>;

/** Models with an adapter. */
const ADAPTED: WeakMap<Module, Lora> = new WeakMap();

/** The adapter of a model; undefined if it has none. */
export function loraOf(model: Module): Lora | undefined {
  return ADAPTED.get(model);
}

/** LoRA of one model. Made by {@link addLora}. */
export class Lora {
  /** The model that it is beside. */
  readonly model: Module;
  /** The options of {@link addLora}, with defaults filled in. */
  readonly settings: LoraSettings;
  /** Adapters by the names of their layers. */
  readonly layers: ReadonlyMap<string, LoraLayer>;
  /** Names of modules that are trained in full. */
  readonly savedModules: readonly string[];
  /** Keys of an `adapter_config.json` that this library does not read, as they were found. */
  otherKeys: Readonly<Record<string, unknown>> = {};
  /** The source of the base model, as users wrote it; undefined where it has no folder. */
  baseModel: string | undefined;
  readonly #handles: readonly HookHandle[];
  readonly #own: ReadonlySet<unknown>;

  /** @internal */
  constructor(
    model: Module,
    settings: LoraSettings,
    layers: ReadonlyMap<string, LoraLayer>,
    savedModules: readonly string[],
    handles: readonly HookHandle[],
  ) {
    this.model = model;
    this.settings = settings;
    this.layers = layers;
    this.savedModules = savedModules;
    this.#handles = handles;
    this.#own = new Set([...layers.values()].flatMap(({ factors: { a, b } }) => [a, b]));
  }

  /** True if a parameter or a buffer belongs to the adapter, not to the model. */
  owns(part: unknown): boolean {
    return this.#own.has(part);
  }

  /** All that the adapter's files hold, by name: its own parameters, and the parameters of modules that are trained in full. */
  *namedParameters(): Generator<readonly [name: string, parameter: Parameter]> {
    for (const [name, parameter] of this.model.namedParameters()) {
      if (this.owns(parameter) || this.savedModules.some((module) => name.startsWith(`${module}.`))) {
        yield [name, parameter];
      }
    }
  }

  /**
   * Leaves the adapter out of forwards until the end of a block: the model computes what it did without. Modules that are trained in
   * full stay as they are. Backwards of earlier forwards are not changed (PEFT's `disable_adapter`).
   *
   * @example
   * ```ts
   * import { addLora, launch, openModel } from "fullyshard";
   * await using run = await launch();
   * const sizes = { vocab_size: 64, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 1, num_attention_heads: 4 };
   * const lora = addLora(await openModel(run, { model_type: "llama", ...sizes }));
   * {
   *   using _base = lora.disable();
   *   if ([...lora.layers.values()].some(({ isEnabled }) => isEnabled)) throw new Error("an adapter is on");
   * }
   * if (![...lora.layers.values()].every(({ isEnabled }) => isEnabled)) throw new Error("an adapter is off");
   * ```
   */
  disable(): Disposable {
    const layers = [...this.layers.values()].filter(({ isEnabled }) => isEnabled);
    for (const layer of layers) layer.isEnabled = false;
    return {
      [Symbol.dispose]: () => {
        for (const layer of layers) layer.isEnabled = true;
      },
    };
  }

  /** Takes the adapter off: the model computes what it did without. Parameters stay as they are, trained or frozen. */
  remove(): void {
    for (const detach of this.#handles) detach();
    ADAPTED.delete(this.model);
    this.model.nameTree();
  }
}

/**
 * Adds LoRA (Hu et al. 2021) to layers of a model, and freezes all other parameters: `W x` becomes `W x + scale · B A x`, with `A`
 * [r, in] and `B` [out, r]. Call it before `fullyShard`, `replicate` and the optimizer; the adapter's parameters lie in the units of
 * their layers, and frozen ones have neither gradients nor states there.
 *
 * @returns the adapter, also known by the model: `model.load()` gives it values, `model.save()` saves it alone
 * @throws {ArgumentError} if no module is chosen, with the nearest names; if the model is sharded or has an adapter; if a number
 * makes no sense, or an option is none of these
 * @throws {UnsupportedError} if a module is chosen that cannot have one, or a tied module is to be trained in full
 * @example
 * ```ts
 * import { addLora, launch, openModel } from "fullyshard";
 * await using run = await launch();
 * const sizes = { vocab_size: 64, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4 };
 * const model = await openModel(run, { model_type: "llama", ...sizes });
 * addLora(model, { r: 4, loraAlpha: 8, targetModules: ["q_proj", "v_proj"] });
 * await model.load();
 * const trained = [...model.namedParameters()].filter(([, { requiresGrad }]) => requiresGrad).map(([name]) => name);
 * if (trained.length !== 8 || trained[0] !== "model.layers.0.self_attn.q_proj.lora_A.weight") throw new Error(trained.join());
 * ```
 */
export function addLora(model: Module, options: LoraOptions = {}): Lora {
  requireModule("add an adapter to", model);
  requireKnownKeys("add LoRA", options, KNOWN_OPTIONS);
  const settings = settingsOf(options);
  if (loraOf(model) !== undefined) {
    throw new ArgumentError("Cannot add an adapter: the model has one; merge it by mergeLora, or remove it, first");
  }
  model.ensureNames();
  for (const [name, { storage: { kind }, placements }] of model.namedParameters()) {
    if (kind !== "plain") {
      throw new ArgumentError(`Cannot add an adapter: '${name}' is ${kind} already; call addLora before`);
    }
    if (placements.length > 0) {
      throw new UnsupportedError(
        `Cannot add an adapter: '${name}' is cut over an axis; call addLora before parallelizeModule, which cuts adapters as well`,
      );
    }
  }
  const targets = targetsOf(model, settings);
  const savedModules = savedModulesOf(model, settings.modulesToSave);
  const made = targets.map(([name, module]) => {
    const r = byPattern(settings.rankPattern, name, settings.r, "rankPattern");
    const alpha = byPattern(settings.alphaPattern, name, settings.loraAlpha, "alphaPattern");
    requireRank(r, `rankPattern of '${name}'`);
    const scale = alpha / (settings.useRslora ? Math.sqrt(r) : r);
    if (module instanceof Embedding) {
      const adapter = new EmbeddingLora(module, { r, scale });
      return { name, module, adapter, attach: () => module.attachAdapter(adapter) };
    }
    const init = settings.initLoraWeights === true ? "kaiming" : "gaussian";
    const adapter = new LinearLora(module, { r, scale, dropout: settings.loraDropout, init });
    return { name, module, adapter, attach: () => module.attachAdapter(adapter) };
  });
  for (const [name, { quantized }] of model.namedParameters()) {
    if (quantized === undefined || !savedModules.some((saved) => name.startsWith(`${saved}.`))) continue;
    throw new ArgumentError(
      `Cannot train '${name}' as a whole: it is quantized to ${quantized.name}; name its module in skipModules of quantizeModel too`,
    );
  }
  // Nothing fails from here on.
  for (const parameter of model.parameters()) parameter.requiresGrad = false;
  const handles = made.map(({ attach }) => attach());
  for (const { module, adapter } of made) {
    for (const [, child] of adapter.children()) if (child instanceof Module) child.train(module.training);
  }
  model.nameTree();
  const layers = new Map(made.map(({ name, adapter }) => [name, adapter]));
  const lora = new Lora(model, settings, layers, savedModules, handles);
  for (const [, parameter] of lora.namedParameters()) parameter.requiresGrad = true;
  ADAPTED.set(model, lora);
  return lora;
}

/** Gives an adapter's own parameters their first values; modules that are trained in full keep their values. Every rank must. */
export function drawAdapter(lora: Lora, seed: number): void {
  drawParameters([...lora.namedParameters()].map(([, parameter]) => parameter).filter((one) => lora.owns(one)), seed);
}

function requireRank(r: number, what: string): void {
  if (Number.isSafeInteger(r) && r > 0) return;
  throw new ArgumentError(`Cannot add an adapter with ${what} ${r}: it must be a positive integer`);
}

function settingsOf(options: LoraOptions): LoraSettings {
  const settings: LoraSettings = {
    r: options.r ?? 8,
    loraAlpha: options.loraAlpha ?? 8,
    loraDropout: requireProbability(options.loraDropout ?? 0),
    targetModules: options.targetModules ?? "all-linear",
    excludeModules: options.excludeModules,
    modulesToSave: options.modulesToSave,
    layersToTransform: options.layersToTransform,
    layersPattern: options.layersPattern,
    useRslora: options.useRslora ?? false,
    rankPattern: options.rankPattern ?? {},
    alphaPattern: options.alphaPattern ?? {},
    initLoraWeights: options.initLoraWeights ?? true,
  };
  for (const key of Object.keys(options)) {
    if (!(key in settings)) {
      throw new ArgumentError(`Cannot add an adapter: there is no option '${key}'${nearest(key, settings)}`);
    }
  }
  requireRank(settings.r, "r");
  const { initLoraWeights, useRslora } = settings;
  requireSwitch("add an adapter", "useRslora", useRslora);
  if (initLoraWeights !== true && initLoraWeights !== "gaussian") {
    throw new ArgumentError(
      `Cannot add an adapter with initLoraWeights ${valueText(initLoraWeights)}: expected true or "gaussian"`,
    );
  }
  for (const alpha of [settings.loraAlpha, ...Object.values(settings.alphaPattern)]) {
    if (!Number.isFinite(alpha)) {
      throw new ArgumentError(`Cannot add an adapter with loraAlpha ${alpha}: it must be finite`);
    }
  }
  return settings;
}

function nearest(key: string, settings: LoraSettings): string {
  return didYouMean(key, Object.keys(settings));
}
