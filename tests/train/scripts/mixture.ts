/**
 * A training of a small mixture of experts on bytes.
 *
 * @module
 */
import process from "node:process";
import { runTrainingScript } from "../../../doors/config.ts";

const sizes = {
  hidden_size: 32,
  intermediate_size: 48,
  num_hidden_layers: 2,
  num_attention_heads: 2,
  num_key_value_heads: 1,
};
const experts = {
  num_local_experts: 4,
  num_experts_per_tok: 2,
  router_aux_loss_coef: 0.02,
  output_router_logits: true,
};
process.exitCode = await runTrainingScript({
  hfConfig: { model_type: "mixtral", vocab_size: 257, max_position_embeddings: 64, ...sizes, ...experts },
});
