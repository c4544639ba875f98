/**
 * The list of model families: how to read the Hugging Face config of each and build the model.
 *
 * @module
 */
import { didYouMean } from "../config/nearest.ts";
import type { Device } from "../device/device.ts";
import { ConfigError, UnsupportedError } from "../errors.ts";
import { isJsonObject, kindOf } from "../json.ts";
import { whichAre } from "../words.ts";
import type { CausalLm } from "./causal_lm.ts";
import { refuseUnimplemented, requireBuildable, requireCountable } from "./decoder_config.ts";
import { resolveDeepseekV2Config } from "./deepseek_v2/config.ts";
import { DeepseekV2ForCausalLm } from "./deepseek_v2/model.ts";
import { resolveGemma2Config } from "./gemma2/config.ts";
import { Gemma2ForCausalLm } from "./gemma2/model.ts";
import { resolveGemma3Config } from "./gemma3/config.ts";
import { Gemma3ForCausalLm } from "./gemma3/model.ts";
import { resolveGlm4Config } from "./glm4/config.ts";
import { Glm4ForCausalLm } from "./glm4/model.ts";
import { resolveGlm4MoeLiteConfig } from "./glm4_moe_lite/config.ts";
import { Glm4MoeLiteForCausalLm } from "./glm4_moe_lite/model.ts";
import { resolveGlmMoeDsaConfig } from "./glm_moe_dsa/config.ts";
import { GlmMoeDsaForCausalLm } from "./glm_moe_dsa/model.ts";
import { resolveGpt2Config } from "./gpt2/config.ts";
import { Gpt2ForCausalLm } from "./gpt2/model.ts";
import { resolveGptOssConfig } from "./gpt_oss/config.ts";
import { GptOssForCausalLm } from "./gpt_oss/model.ts";
import { resolveGraniteConfig } from "./granite/config.ts";
import { GraniteForCausalLm } from "./granite/model.ts";
import { resolveLfm2Config } from "./lfm2/config.ts";
import { Lfm2ForCausalLm } from "./lfm2/model.ts";
import { resolveLlamaConfig } from "./llama/config.ts";
import { LlamaForCausalLm } from "./llama/model.ts";
import { resolveMistralConfig } from "./mistral/config.ts";
import { MistralForCausalLm } from "./mistral/model.ts";
import { resolveMixtralConfig } from "./mixtral/config.ts";
import { MixtralForCausalLm } from "./mixtral/model.ts";
import { resolveModernBertDecoderConfig } from "./modernbert_decoder/config.ts";
import { ModernBertDecoderForCausalLm } from "./modernbert_decoder/model.ts";
import { resolveOlmo2Config } from "./olmo2/config.ts";
import { Olmo2ForCausalLm } from "./olmo2/model.ts";
import { resolveOlmo3Config } from "./olmo3/config.ts";
import { Olmo3ForCausalLm } from "./olmo3/model.ts";
import { resolvePhiConfig } from "./phi/config.ts";
import { PhiForCausalLm } from "./phi/model.ts";
import { resolvePhi3Config } from "./phi3/config.ts";
import { Phi3ForCausalLm } from "./phi3/model.ts";
import { resolvePhimoeConfig } from "./phimoe/config.ts";
import { PhimoeForCausalLm } from "./phimoe/model.ts";
import { resolveQwen2Config } from "./qwen2/config.ts";
import { Qwen2ForCausalLm } from "./qwen2/model.ts";
import { resolveQwen2MoeConfig } from "./qwen2_moe/config.ts";
import { Qwen2MoeForCausalLm } from "./qwen2_moe/model.ts";
import { resolveQwen3Config } from "./qwen3/config.ts";
import { Qwen3ForCausalLm } from "./qwen3/model.ts";
import { resolveQwen35Config } from "./qwen3_5/config.ts";
import { Qwen35ForCausalLm } from "./qwen3_5/model.ts";
import { resolveQwen35MoeConfig } from "./qwen3_5_moe/config.ts";
import { Qwen35MoeForCausalLm } from "./qwen3_5_moe/model.ts";
import { resolveQwen3MoeConfig } from "./qwen3_moe/config.ts";
import { Qwen3MoeForCausalLm } from "./qwen3_moe/model.ts";
import { resolveQwen3NextConfig } from "./qwen3_next/config.ts";
import { Qwen3NextForCausalLm } from "./qwen3_next/model.ts";
import { resolveSmolLm3Config } from "./smollm3/config.ts";
import { SmolLm3ForCausalLm } from "./smollm3/model.ts";

/** One family of models. */
export interface ModelFamily {
  /** `model_type` in `config.json`. */
  readonly modelType: string;
  /**
   * Builds the model, without memory.
   *
   * @param hfConfig a parsed `config.json`
   * @throws {ConfigError} listing everything in it that is wrong, {@link UnsupportedError} for options not implemented
   */
  build(device: Device, hfConfig: Readonly<Record<string, unknown>>): CausalLm;
}

/** A family of a configuration and a model. */
function family<Config>(
  modelType: string,
  resolve: (hfConfig: Readonly<Record<string, unknown>>) => Config,
  Model: new (device: Device, config: Config, hfConfig: Readonly<Record<string, unknown>>) => CausalLm,
): ModelFamily {
  return { modelType, build: (device, hfConfig) => new Model(device, resolve(hfConfig), hfConfig) };
}

/** All families. */
export const FAMILIES: readonly ModelFamily[] = [
  family("deepseek_v2", resolveDeepseekV2Config, DeepseekV2ForCausalLm),
  family("gemma2", resolveGemma2Config, Gemma2ForCausalLm),
  family("gemma3_text", resolveGemma3Config, Gemma3ForCausalLm),
  family("glm4", resolveGlm4Config, Glm4ForCausalLm),
  family("glm4_moe_lite", resolveGlm4MoeLiteConfig, Glm4MoeLiteForCausalLm),
  family("glm_moe_dsa", resolveGlmMoeDsaConfig, GlmMoeDsaForCausalLm),
  family("gpt2", resolveGpt2Config, Gpt2ForCausalLm),
  family("gpt_oss", resolveGptOssConfig, GptOssForCausalLm),
  family("granite", resolveGraniteConfig, GraniteForCausalLm),
  family("lfm2", resolveLfm2Config, Lfm2ForCausalLm),
  family("llama", resolveLlamaConfig, LlamaForCausalLm),
  family("mistral", resolveMistralConfig, MistralForCausalLm),
  family("mixtral", resolveMixtralConfig, MixtralForCausalLm),
  family("modernbert-decoder", resolveModernBertDecoderConfig, ModernBertDecoderForCausalLm),
  family("olmo2", resolveOlmo2Config, Olmo2ForCausalLm),
  family("olmo3", resolveOlmo3Config, Olmo3ForCausalLm),
  family("phi", resolvePhiConfig, PhiForCausalLm),
  family("phi3", resolvePhi3Config, Phi3ForCausalLm),
  family("phimoe", resolvePhimoeConfig, PhimoeForCausalLm),
  family("qwen2", resolveQwen2Config, Qwen2ForCausalLm),
  family("qwen2_moe", resolveQwen2MoeConfig, Qwen2MoeForCausalLm),
  family("qwen3", resolveQwen3Config, Qwen3ForCausalLm),
  family("qwen3_5_moe_text", resolveQwen35MoeConfig, Qwen35MoeForCausalLm),
  family("qwen3_5_text", resolveQwen35Config, Qwen35ForCausalLm),
  family("qwen3_moe", resolveQwen3MoeConfig, Qwen3MoeForCausalLm),
  family("qwen3_next", resolveQwen3NextConfig, Qwen3NextForCausalLm),
  family("smollm3", resolveSmolLm3Config, SmolLm3ForCausalLm),
];

/** `model_type` of composite models, with the one of their text model, which transformers' AutoModelForCausalLM takes. */
const COMPOSITE: ReadonlyMap<unknown, string> = new Map([
  ["gemma3", "gemma3_text"],
  ["qwen3_5", "qwen3_5_text"],
  ["qwen3_5_moe", "qwen3_5_moe_text"],
]);

/** The config of the text model: a part of a composite config, or the config itself. */
function textConfigOf(hfConfig: Readonly<Record<string, unknown>>): Readonly<Record<string, unknown>> {
  const modelType = COMPOSITE.get(hfConfig["model_type"]);
  if (modelType === undefined) return hfConfig;
  const [text, compressed] = [hfConfig["text_config"], hfConfig["quantization_config"]];
  if (!isJsonObject(text)) {
    const expected = `an object, the ${modelType} inside of ${hfConfig["model_type"]}`;
    throw new ConfigError([{ path: "config.json text_config", expected, got: kindOf(text) }]);
  }
  return { model_type: modelType, ...text, ...compressed == null ? {} : { quantization_config: compressed } };
}

/**
 * Builds the model that a Hugging Face config describes, without memory: shard it, then initialize or load it.
 *
 * @param config a parsed `config.json`; of a composite model (`gemma3`, `qwen3_5`, `qwen3_5_moe`) the text model is built
 * @throws {UnsupportedError} if the family or an option of it is not implemented
 * @throws {ConfigError} if the config does not fit the family
 */
export function buildModel(device: Device, config: Readonly<Record<string, unknown>>): CausalLm {
  const hfConfig = textConfigOf(config);
  const asked = hfConfig["model_type"];
  const family = FAMILIES.find(({ modelType }) => modelType === asked);
  if (family === undefined) {
    const known = FAMILIES.map(({ modelType }) => modelType);
    const what = asked === undefined ? "no model_type" : `model_type '${asked}'`;
    const hint = typeof asked === "string" ? didYouMean(asked, known) : "";
    throw new UnsupportedError(`Cannot build a model of ${what}: ${whichAre(known, "supported")}${hint}`);
  }
  refuseUnimplemented(hfConfig);
  requireBuildable(hfConfig);
  const model = family.build(device, hfConfig);
  requireCountable(model.parameters());
  return model;
}
