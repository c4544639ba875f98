/**
 * A training of many small steps that writes, every 100 steps, what its process holds: a line of JSON a time, in
 * `held-rank<r>.jsonl` of the folder of `--out`.
 *
 * @module
 */
import { appendFileSync, readdirSync } from "node:fs";
import process from "node:process";
import { runTrainingScript } from "../../../doors/config.ts";
import type { Held } from "../soak.ts";

/** Steps from one line to the next. */
const EVERY = 100;

const argv = process.argv.slice(2);
const out = argv[argv.indexOf("--out") + 1] ?? "";

process.exitCode = await runTrainingScript({
  usage: "soak.ts [flags]",
  argv,
  hfConfig: {
    ...{ model_type: "llama", vocab_size: 257, hidden_size: 8, intermediate_size: 16, num_hidden_layers: 1 },
    ...{ num_attention_heads: 1, num_key_value_heads: 1, max_position_embeddings: 16, rms_norm_eps: 1e-6 },
    ...{ rope_theta: 10000, initializer_range: 0.02, tie_word_embeddings: false },
  },
  onStep: ({ step }, { device, group }) => {
    if (step % EVERY !== 0) return;
    const { heapUsed, heapTotal, rss } = process.memoryUsage();
    const held: Held = {
      step,
      allocated: device.allocator.stats.inUse,
      heap: heapUsed,
      outside: rss - heapTotal,
      handles: readdirSync("/proc/self/fd").length,
      threads: readdirSync("/proc/self/task").length,
    };
    appendFileSync(`${out}/held-rank${group.rank}.jsonl`, `${JSON.stringify(held)}\n`);
  },
});
