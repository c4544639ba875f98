/**
 * Writes what `interop_dcp.py` reads with PyTorch: a sharded checkpoint of three ranks, and the Hugging Face directory of
 * the same model, from a directory to start from.
 *
 * Usage: deno run -A scripts/interop_write.ts <Hugging Face directory> <output directory>
 *
 * @module
 */
import { readFileSync } from "node:fs";
import process from "node:process";
import { runRanks } from "../tests/checkpoint/run_ranks.ts";

const [from, to] = process.argv.slice(2);
if (from === undefined || to === undefined) throw new Error("two arguments are needed: where to read, where to write");
const llama = JSON.parse(readFileSync(`${from}/config.json`, "utf8"));
const outcomes = await runRanks([
  { do: "load-hf", world: 3, directory: from, seed: 0, llama, saveTo: `${to}/hf`, checkpointTo: `${to}/checkpoints` },
  { do: "load-hf", world: 2, directory: from, seed: 0, llama, saveTo: `${to}/hf-sharded`, maxShardBytes: 20_000 },
]);
for (const { error } of outcomes.flat()) if (error !== "") throw new Error(error);
