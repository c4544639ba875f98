/** Saves a checkpoint on two ranks in a process whose files the caller has limited. @module */
import process from "node:process";
import { runRanks } from "./run_ranks.ts";

const [directory = "", step = "0"] = process.argv.slice(2);
const [outcomes = []] = await runRanks([{ do: "save", world: 2, directory, seed: 1, step: Number(step) }]);
process.stdout.write(outcomes.map(({ error }) => `${error === "" ? "saved" : error}\n`).join(""));
