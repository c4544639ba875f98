/**
 * A small training with callbacks, of which each rank prints what it was told; with `end=<n>`, rank 1 asks to stop at the n-th
 * evaluation. All other arguments are the trainer's flags.
 *
 * @module
 */
import process from "node:process";
import { runTrainingScript } from "../../../doors/config.ts";

const end = process.argv.slice(2).find((text) => text.startsWith("end="))?.slice("end=".length);
let evaluations = 0;
const sizes = { hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2 };
process.exitCode = await runTrainingScript({
  argv: process.argv.slice(2).filter((text) => !text.startsWith("end=")),
  hfConfig: { model_type: "llama", vocab_size: 257, max_position_embeddings: 64, ...sizes },
  callbacks: [{
    onStep: ({ step }, { group }) => process.stderr.write(`told ${group.rank} step ${step}\n`) ? undefined : undefined,
    onEvaluate: (figures, step, { group }) => {
      process.stderr.write(`told ${group.rank} evaluate ${step} ${Object.keys(figures).join(",")}\n`);
      return String(++evaluations) === end && group.rank === 1 ? "stop" : undefined;
    },
    onSave: ({ path, step }, { group }) => {
      process.stderr.write(`told ${group.rank} save ${step} ${path.slice(path.lastIndexOf("/") + 1)}\n`);
    },
  }],
});
