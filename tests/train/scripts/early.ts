/**
 * A training that rank 1 ends after step 3 by `onStep`.
 *
 * @module
 */
import process from "node:process";
import { runTrainingScript } from "../../../doors/config.ts";

const sizes = { hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2 };
process.exitCode = await runTrainingScript({
  hfConfig: { model_type: "llama", vocab_size: 257, max_position_embeddings: 64, ...sizes },
  onStep: ({ step }, { group }) => step === 3 && group.rank === 1 ? "stop" : undefined,
});
