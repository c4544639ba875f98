/**
 * Ranks that open a text with a cache, rank by rank: a line of how many bytes of files were read to open it, and how many tokens it has.
 * Arguments: the text, the cache.
 *
 * @module
 */
import { readFileSync } from "node:fs";
import process from "node:process";
import { launch, openModel, textData } from "../../../mod.ts";

const [text = "", cache = ""] = process.argv.slice(2);
/** Bytes that this process has read from files. */
const bytesRead = (): number => Number(/rchar: (\d+)/.exec(readFileSync("/proc/self/io", "utf8"))?.[1]);

await using run = await launch({ cpuMath: "wasm" });
const sizes = { vocab_size: 257, hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2 };
const model = await openModel(run, { model_type: "llama", ...sizes });
const before = bytesRead();
using data = await textData(run, model, text, { sequenceLength: 64, batch: 2, cache });
const read = bytesRead() - before;
process.stdout.write(
  `${JSON.stringify({ rank: run.group.rank, read, ...data.state(), numSamples: data.numSamples })}\n`,
);
