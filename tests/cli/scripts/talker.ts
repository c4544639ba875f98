/** A training of a small model with 2048 positions, for conversations. All arguments are the trainer's flags. @module */
import process from "node:process";
import { runTrainingScript } from "../../../doors/config.ts";

const sizes = { vocab_size: 512, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2 };
process.exitCode = await runTrainingScript({
  hfConfig: { model_type: "llama", max_position_embeddings: 2048, ...sizes },
});
