/**
 * Quantizing a model's frozen linear layers, as QLoRA does (Dettmers et al. 2023): options by the names of transformers'
 * `BitsAndBytesConfig`.
 *
 * @module
 */
import { type KnownKeys, requireKnownKeys } from "../config/known_keys.ts";
import { requireKernels } from "../device/kernels/required.ts";
import { ArgumentError } from "../errors.ts";
import { Linear } from "../nn/linear.ts";
import type { Module } from "../nn/module.ts";
import { int8, nf4, nf4Nested, type QuantizedDType } from "../quantized.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { loraOf } from "./lora.ts";

/** Quantization of frozen linear layers. One of the first two is true. */
export interface QuantizationOptions {
  /** To 4 bits: NF4, in blocks of 64 elements. @default false */
  readonly loadIn4bit?: boolean;
  /** To 8 bits: integers, in blocks of 64 elements. @default false */
  readonly loadIn8bit?: boolean;
  /** The 4-bit code; bitsandbytes' other one, `fp4`, is not implemented. @default `nf4` */
  readonly bnb4bitQuantType?: "nf4";
  /** Quantizes the factors of NF4's blocks to 8 bits, 256 of them together. @default false */
  readonly bnb4bitUseDoubleQuant?: boolean;
  /** Ends of names of modules that are left as they are (`llm_int8_skip_modules`). @default none */
  readonly skipModules?: readonly string[];
}

/** Names of the options. */
const KNOWN_OPTIONS: KnownKeys<QuantizationOptions> = {
  ...{ loadIn4bit: true, loadIn8bit: true, bnb4bitQuantType: true, bnb4bitUseDoubleQuant: true, skipModules: true },
};

/**
 * The dtype that options ask for.
 *
 * @throws {ArgumentError} if an option is none of these, if they ask for none or for two, or for a part of 4 bits with 8
 */
function quantizedDtypeOf(options: QuantizationOptions): QuantizedDType {
  requireKnownKeys("quantize a model", options, KNOWN_OPTIONS);
  const { loadIn4bit = false, loadIn8bit = false, bnb4bitQuantType = "nf4", bnb4bitUseDoubleQuant = false } = options;
  const refuse = (why: string): never => {
    throw new ArgumentError(`Cannot quantize: ${why}`);
  };
  if (loadIn4bit === loadIn8bit) {
    return refuse(loadIn4bit ? "loadIn4bit and loadIn8bit are both set; set one" : "set loadIn4bit or loadIn8bit");
  }
  if (loadIn8bit && bnb4bitUseDoubleQuant) {
    return refuse("bnb4bitUseDoubleQuant is for loadIn4bit, and loadIn8bit is set; leave one out");
  }
  const code: string = bnb4bitQuantType;
  if (code !== "nf4") return refuse(`bnb4bitQuantType must be 'nf4', got '${code}'`);
  return loadIn8bit ? int8 : bnb4bitUseDoubleQuant ? nf4Nested : nf4;
}

/**
 * Has the weights of linear layers quantized when they get values, and freezes them: a rank keeps, gathers and multiplies their bytes.
 * Left as they are: the output head, embeddings, experts' weights that lie in one tensor, biases, what an adapter or
 * `modulesToSave` trains, and tied weights. Call it before `fullyShard`, `replicate` and `model.load()`; before or after
 * `addLora`.
 *
 * @returns names of the layers
 * @throws {ArgumentError} if options contradict each other, a weight has values or is sharded, no layer is left, or a name of
 * `skipModules` ends no module's
 * @throws {UnsupportedError} on a device without the kernels
 * @example
 * ```ts
 * import { addLora, launch, openModel, quantizeModel } from "fullyshard";
 * await using run = await launch();
 * const sizes = { vocab_size: 64, hidden_size: 64, intermediate_size: 96, num_hidden_layers: 1, num_attention_heads: 4 };
 * const model = await openModel(run, { model_type: "llama", ...sizes });
 * quantizeModel(model, { loadIn4bit: true });
 * addLora(model, { r: 4, loraAlpha: 8 });
 * await model.load();
 * ```
 */
export function quantizeModel(model: Module, options: QuantizationOptions): readonly string[] {
  const dtype = quantizedDtypeOf(options);
  model.ensureNames();
  const modules = [...model.namedModules()];
  const skipped = options.skipModules ?? [];
  for (const end of skipped) {
    if (modules.some(([name]) => endsWith(name, end))) continue;
    throw new ArgumentError(
      `Cannot leave out '${end}' of what is quantized: no module of the model has a name that ends so`,
    );
  }
  const uses = new Map<Parameter, number>();
  for (const [, module] of modules) {
    for (const [, child] of module.children()) if ("storage" in child) uses.set(child, (uses.get(child) ?? 0) + 1);
  }
  const lora = loraOf(model);
  const isTrained = (name: string): boolean =>
    lora !== undefined && lora.savedModules.some((saved) => name === saved || name.startsWith(`${saved}.`));
  const isSkipped = (name: string): boolean =>
    skipped.some((end) => name.split(".").some((_, i, parts) => endsWith(parts.slice(0, i + 1).join("."), end)));
  const layers = modules.flatMap(([name, module]) => {
    if (!(module instanceof Linear) || isTrained(name) || isSkipped(name)) return [];
    return lora?.owns(module.weight) === true || uses.get(module.weight) !== 1 ? [] : [[name, module] as const];
  });
  const [first] = layers;
  if (first === undefined) {
    throw new ArgumentError("Cannot quantize: no linear layer of the model is left; leave fewer out of it");
  }
  requireKernels(first[1].weight.device, "a quantized layer", ["quantize", "dequantize", "gemmQuantized"]);
  for (const [, { weight }] of layers) weight.requireQuantizable();
  for (const [, { weight }] of layers) weight.quantize(dtype);
  return layers.map(([name]) => name);
}

function endsWith(name: string, end: string): boolean {
  return name === end || name.endsWith(`.${end}`);
}
