/**
 * Trains a Llama of about 8 M parameters from scratch on TypeScript's own library declarations, or fine-tunes a Hugging Face
 * folder on files of yours:
 *
 *     npx fullyshard run --nproc-per-node 2 examples/train.ts --steps 200 --out runs/mine
 *     npx fullyshard run --nproc-per-node 2 examples/train.ts --model path/to/llama --data 'texts/**\/*.md'
 *
 * `--help` lists everything that can be set.
 *
 * @module
 */
import process from "node:process";
import { runTrainingScript } from "fullyshard/config";
import { typescriptLib } from "./typescript_lib.ts";

/** The model that is trained when none is named. */
const hfConfig = {
  architectures: ["LlamaForCausalLM"],
  model_type: "llama",
  vocab_size: 4096,
  hidden_size: 256,
  intermediate_size: 688,
  num_hidden_layers: 8,
  num_attention_heads: 8,
  num_key_value_heads: 4,
  max_position_embeddings: 256,
  rms_norm_eps: 1e-6,
  rope_theta: 10000,
  initializer_range: 0.02,
  tie_word_embeddings: false,
  bos_token_id: 0,
  eos_token_id: 0,
};

process.exitCode = await runTrainingScript({
  usage: "train.ts [flags]",
  hfConfig,
  data: () => [typescriptLib()],
  prompt: "interface ",
  tokenizer: new URL("data/tokenizer.json", import.meta.url),
});
