/**
 * A training whose rank 1 changes a bit of a weight after step 3, by itself.
 *
 * @module
 */
import process from "node:process";
import { runTrainingScript } from "../../../doors/config.ts";
import { ownedPtr, writeParameters } from "../../../doors/nn.ts";

const sizes = { hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2 };
process.exitCode = await runTrainingScript({
  hfConfig: { model_type: "llama", vocab_size: 257, max_position_embeddings: 64, ...sizes },
  onStep: ({ step }, { group, device, model }) => {
    if (step !== 3) return;
    let isChanged = group.rank !== 1;
    // Every rank opens its weights, as that is collective.
    writeParameters(model.parameters(), (parameter) => {
      if (isChanged || parameter.storage.shard.numel === 0) return;
      isChanged = true;
      const byte = new Uint8Array(1);
      device.copyOut(byte, ownedPtr(parameter));
      device.copyIn(ownedPtr(parameter), byte.map((bits) => bits ^ 1));
    });
  },
});
