/**
 * The library's side of `interop_dcp.py`: writes a sharded checkpoint of four ranks, and Hugging Face directories of the
 * same model; read on two ranks the shards that PyTorch wrote, and write them as a Hugging Face directory.
 *
 * Usage: bun scripts/interop_ranks.ts write|read <directory to read> <directory with config.json> <output directory>
 *
 * @module
 */
import { readFileSync } from "node:fs";
import process from "node:process";
import type { Task } from "../tests/checkpoint/bed.ts";
import { runRanks } from "../tests/checkpoint/run_ranks.ts";

const [what, directory, config, to] = process.argv.slice(2);
if (directory === undefined || config === undefined || to === undefined) throw new Error("four arguments are needed");
const llama = JSON.parse(readFileSync(`${config}/config.json`, "utf8"));
const load = { do: "load-hf", directory, seed: 0, llama } as const;
const tasks: readonly Task[] = what === "write"
  ? [
    { ...load, world: 4, saveTo: `${to}/hf`, checkpointTo: `${to}/checkpoints` },
    { ...load, world: 2, saveTo: `${to}/hf-sharded`, maxShardBytes: 20_000 },
  ]
  : [
    { ...load, world: 2, saveTo: `${to}/back` },
    { ...load, world: 2, saveTo: `${to}/back-from-rank-0`, broadcastFromRank0: true },
  ];
for (const { error } of (await runRanks(tasks)).flat()) if (error !== "") throw new Error(error);
