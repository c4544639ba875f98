/** Keys that ModernBERT's decoder does not support are refused by name. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { UnsupportedError } from "../../src/errors.ts";
import { resolveModernBertDecoderConfig } from "../../src/models/modernbert_decoder/config.ts";

const SIZES = {
  ...{ vocab_size: 64, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2, num_attention_heads: 4 },
  ...{ pad_token_id: 0 },
};

test("ModernBERT's decoder has as many heads of keys as of queries, which divide the hidden size among them", () => {
  const { numKvHeads, headDim } = resolveModernBertDecoderConfig({ ...SIZES, num_key_value_heads: 4, head_dim: 4 });
  assert.deepEqual([numKvHeads, headDim], [4, 4]);
  for (const [key, value, implemented] of [["num_key_value_heads", 2, 4], ["head_dim", 8, 4]] as const) {
    assert.throws(() => resolveModernBertDecoderConfig({ ...SIZES, [key]: value }), (error) => {
      return error instanceof UnsupportedError &&
        error.message === `Cannot use ${key} ${value}: it is not implemented, set it to ${implemented}`;
    });
  }
});
