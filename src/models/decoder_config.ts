/**
 * Configuration keys that all decoders share, and their resolution.
 *
 * @module
 */
import * as z from "zod";
import { ConfigError, type ConfigProblem, UnsupportedError } from "../errors.ts";
import type { Activation } from "../nn/feed_forward.ts";
import type { Init, Parameter } from "../tensor/parameter.ts";
import { MAX_EXPERTS } from "../ops/router.ts";
import { whichAre } from "../words.ts";

/** Resolved configuration that all decoders share. */
export interface DecoderConfig {
  readonly vocabSize: number;
  readonly hiddenSize: number;
  readonly numLayers: number;
  readonly numHeads: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly maxPositions: number;
  readonly tieWordEmbeddings: boolean;
  /** Initialization of weights. */
  readonly init: Init;
  /** The row of the embedding that lookups give no gradient, if there is one. */
  readonly paddingIdx: number | undefined;
  /** Dropout probability of attention weights in training. */
  readonly attentionDropout: number;
}

/** A positive integer. */
export const size: z.ZodInt = z.int().positive();
/** A positive number. */
export const positive: z.ZodNumber = z.number().positive();

/** A probability. */
export const probability: z.ZodNumber = z.number().min(0).max(1);

type Optional<T extends z.ZodType> = z.ZodOptional<z.ZodNullable<T>>;

/** Keys of nearly all decoders, to be spread into a family's schema, where a key that follows replaces its namesake here. */
export const DECODER_KEYS: {
  readonly vocab_size: z.ZodInt;
  readonly hidden_size: z.ZodInt;
  readonly num_hidden_layers: z.ZodInt;
  readonly num_attention_heads: z.ZodInt;
  readonly num_key_value_heads: Optional<z.ZodInt>;
  readonly head_dim: Optional<z.ZodInt>;
  readonly initializer_range: z.ZodDefault<z.ZodNumber>;
  readonly pad_token_id: Optional<z.ZodInt>;
  readonly tie_word_embeddings: z.ZodDefault<z.ZodBoolean>;
  readonly attention_dropout: Optional<z.ZodNumber>;
} = {
  vocab_size: size,
  hidden_size: size,
  num_hidden_layers: size,
  num_attention_heads: size,
  num_key_value_heads: size.nullish(),
  head_dim: size.nullish(),
  initializer_range: positive.default(0.02),
  pad_token_id: z.int().nullish(),
  tie_word_embeddings: z.boolean().default(false),
  attention_dropout: probability.nullish(),
};

/** Keys that were checked by a schema of {@link DECODER_KEYS}. */
interface RawDecoder {
  readonly vocab_size: number;
  readonly hidden_size: number;
  readonly num_hidden_layers: number;
  readonly num_attention_heads: number;
  readonly num_key_value_heads?: number | null | undefined;
  readonly head_dim?: number | null | undefined;
  readonly max_position_embeddings: number;
  readonly initializer_range: number;
  readonly pad_token_id?: number | null | undefined;
  readonly tie_word_embeddings: boolean;
  readonly attention_dropout?: number | null | undefined;
}

/**
 * Resolves the common keys.
 *
 * @throws {ConfigError} if heads do not fit each other, or the padding id is none
 */
export function resolveDecoder(raw: RawDecoder): DecoderConfig {
  const numHeads = raw.num_attention_heads;
  const numKvHeads = raw.num_key_value_heads ?? numHeads;
  const headDim = raw.head_dim ?? raw.hidden_size / numHeads;
  const { pad_token_id: pad, vocab_size: vocabSize } = raw;
  // Counted from the back when negative, as PyTorch's embedding does.
  const paddingIdx = pad == null ? undefined : pad < 0 ? vocabSize + pad : pad;
  const problems: ConfigProblem[] = [];
  const require = (holds: boolean, key: string, expected: string, got: string): void => {
    if (!holds) problems.push({ path: `config.json ${key}`, expected, got });
  };
  const dimGot = `${headDim} (hidden_size / num_attention_heads)`;
  require(Number.isInteger(headDim), "head_dim", "an integer", dimGot);
  require(numHeads % numKvHeads === 0, "num_key_value_heads", `a divisor of ${numHeads}`, `${numKvHeads}`);
  const isId = paddingIdx === undefined || (paddingIdx >= 0 && paddingIdx < vocabSize);
  require(isId, "pad_token_id", `an id below vocab_size ${vocabSize}`, `${pad}`);
  if (problems.length > 0) throw new ConfigError(problems);
  return {
    vocabSize,
    hiddenSize: raw.hidden_size,
    numLayers: raw.num_hidden_layers,
    numHeads,
    numKvHeads,
    headDim,
    maxPositions: raw.max_position_embeddings,
    tieWordEmbeddings: raw.tie_word_embeddings,
    init: { kind: "normal", mean: 0, std: raw.initializer_range },
    paddingIdx,
    attentionDropout: raw.attention_dropout ?? 0,
  };
}

/** Functions by the names that transformers gives them. */
const ACTIVATIONS: ReadonlyMap<string, Activation> = new Map([
  ["silu", "silu"],
  ["swish", "silu"],
  ["gelu", "gelu"],
  ["gelu_new", "geluTanh"],
  ["gelu_fast", "geluTanh"],
  ["gelu_pytorch_tanh", "geluTanh"],
  ["relu", "relu"],
  ["tanh", "tanh"],
  ["sigmoid", "sigmoid"],
]);

/**
 * The function that a key names.
 *
 * @throws {UnsupportedError} if it is not implemented
 */
export function resolveActivation(key: string, name: string): Activation {
  const activation = ACTIVATIONS.get(name);
  if (activation !== undefined) return activation;
  throw new UnsupportedError(`Cannot use ${key} '${name}': ${whichAre([...ACTIVATIONS.keys()], "implemented")}`);
}

/**
 * Refuses options whose value would change the computation.
 *
 * @param options values by key, each with the implemented value
 * @throws {UnsupportedError} naming the first
 */
export function requireImplemented(
  options: Readonly<Record<string, readonly [value: unknown, implemented: unknown]>>,
): void {
  for (const [key, [value, implemented]] of Object.entries(options)) {
    if (value === implemented) continue;
    throw new UnsupportedError(`Cannot use ${key} ${value}: it is not implemented, set it to ${implemented}`);
  }
}

/** Options that transformers has for every model and that are not implemented, each with the value that changes nothing. */
export const REFUSED_KEYS: Readonly<Record<string, unknown>> = {
  /** True if tokens see no later tokens. */
  is_causal: true,
  /** Options of some layers that are other ones than the model's. */
  per_layer_config: undefined,
  /** Compression of weights. */
  quantization_config: undefined,
};

/** Treatments of some of them. */
const REMEDIES: Readonly<Record<string, string>> = {
  quantization_config:
    "take the model's folder whose weights are not quantized; 'loadIn4bit' and 'loadIn8bit' quantize them as " +
    "they are read",
};

/**
 * Refuses what no family implements.
 *
 * @throws {UnsupportedError} naming the first such option
 */
export function refuseUnimplemented(hfConfig: Readonly<Record<string, unknown>>): void {
  for (const [key, harmless] of Object.entries(REFUSED_KEYS)) {
    const value = hfConfig[key];
    if (value == null || value === harmless) continue;
    const remedy = REMEDIES[key] ?? (harmless === undefined ? "leave it out" : `set it to ${harmless}`);
    throw new UnsupportedError(`Cannot use ${key} ${JSON.stringify(value)}: it is not implemented, ${remedy}`);
  }
}

/** Most layers of a model. The deepest that are known have about 1000. */
const MOST_LAYERS = 2048;
/** Most experts of a model, over all its layers. */
const MOST_EXPERTS = 2 ** 20;
/** Most parameters of a model: 16 times the largest that are known, 70 TB in float32. */
const MOST_PARAMETERS = 2 ** 44;
/** Bytes of this process' memory that a layer's modules take before they have values, and names of an expert's tensors. */
const BYTES_BEFORE_VALUES = { layer: 56e3, expert: 1500 };

/**
 * Refuses numbers of layers and experts whose objects alone would fill this process's memory, before any is made.
 *
 * @throws {ConfigError} naming the key, and the memory that it would need
 */
export function requireBuildable(hfConfig: Readonly<Record<string, unknown>>): void {
  const numberOf = (...keys: readonly string[]): readonly [key: string, count: number] => {
    const found = keys.filter((key) => Object.hasOwn(hfConfig, key)).flatMap((key) => {
      const value = hfConfig[key];
      return typeof value === "number" && Number.isSafeInteger(value) ? [[key, value] as const] : [];
    });
    return found[0] ?? ["", 1]; // the family's schema reports the missing key
  };
  const require = (key: string, most: number, of: string, count: number, bytes: number): void => {
    if (count <= most) return;
    const expected = `at most ${most} ${of}`;
    const gigabytes = Math.ceil(count * bytes / 1e9);
    const got = `${count}, which would need about ${gigabytes} GB of this process' memory before any weight`;
    throw new ConfigError([{ path: `config.json ${key}`, expected, got }]);
  };
  const [layersKey, layers] = numberOf("num_hidden_layers", "n_layer", "num_layers");
  require(layersKey, MOST_LAYERS, "layers", layers, BYTES_BEFORE_VALUES.layer);
  const [expertsKey, experts] = numberOf("n_routed_experts", "num_local_experts", "num_experts");
  const most = Math.min(MAX_EXPERTS, Math.floor(MOST_EXPERTS / Math.max(1, layers)));
  require(
    expertsKey,
    most,
    `experts in each of ${layers} layers`,
    experts,
    Math.max(1, layers) * BYTES_BEFORE_VALUES.expert,
  );
}

/**
 * Refuses a model with sizes whose products would no longer be exact numbers.
 *
 * @throws {ConfigError} naming the largest parameter and the bytes of all
 */
export function requireCountable(parameters: Iterable<Pick<Parameter, "fqn" | "shape" | "numel">>): void {
  let total = 0;
  let largest: Pick<Parameter, "fqn" | "shape" | "numel"> | undefined;
  for (const parameter of parameters) {
    total += parameter.numel;
    if (largest === undefined || parameter.numel > largest.numel) largest = parameter;
  }
  if (total <= MOST_PARAMETERS || largest === undefined) return;
  const expected = `sizes of at most ${MOST_PARAMETERS} parameters`;
  const got =
    `about ${total.toPrecision(3)}, which would need ${(total * 4).toPrecision(3)} bytes in float32; the largest is ` +
    `'${largest.fqn}' [${largest.shape.join(", ")}]`;
  throw new ConfigError([{ path: "config.json", expected, got }]);
}

/** Names of the types of layers in `config.json`. */
export type LayerType = "full_attention" | "sliding_attention" | "conv" | "linear_attention";

/**
 * Attention window of each layer, in tokens: of sliding layers; undefined in all other layers, which see all tokens.
 *
 * @throws {ConfigError} if a layer slides and there is no window
 */
export function windowsOf(
  types: readonly LayerType[],
  window: number | null | undefined,
): readonly (number | undefined)[] {
  return types.map((type) => {
    if (type !== "sliding_attention") return undefined;
    if (window != null) return window;
    const expected = "a number, as layers of layer_types slide";
    throw new ConfigError([{ path: "config.json sliding_window", expected, got: "nothing" }]);
  });
}

/**
 * The type of each layer.
 *
 * @param given `layer_types` of the config
 * @param typeOf the type of a layer where the config has none
 * @throws {ConfigError} if there is not one for each layer
 * @throws {UnsupportedError} for a type that the family has not
 */
export function resolveLayerTypes<T extends LayerType>(
  given: readonly string[] | null | undefined,
  numLayers: number,
  types: readonly T[],
  typeOf: (layer: number) => T,
): readonly T[] {
  if (given == null) return Array.from({ length: numLayers }, (_, i) => typeOf(i));
  if (given.length !== numLayers) {
    const expected = `one for each of ${numLayers} layers`;
    throw new ConfigError([{ path: "config.json layer_types", expected, got: String(given.length) }]);
  }
  return given.map((name) => {
    const type = types.find((one) => one === name);
    if (type !== undefined) return type;
    throw new UnsupportedError(`Cannot build a layer of type '${name}': ${whichAre(types, "implemented")}`);
  });
}
