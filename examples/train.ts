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
import { LLAMA_8M } from "./llama_8m.ts";
import { typescriptLib } from "./typescript_lib.ts";

process.exitCode = await runTrainingScript({
  usage: "train.ts [flags]",
  hfConfig: LLAMA_8M, // trained when no model is named
  data: () => [typescriptLib()],
  prompt: "interface ",
  tokenizer: new URL("data/tokenizer.json", import.meta.url),
});
