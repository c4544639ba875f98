/** Saves a checkpoint on two ranks in a process whose files the caller has limited. @module */
import process from "node:process";
import { runRanks } from "./run_ranks.ts";

const [directory = "", step = "0", then] = process.argv.slice(2);
const task = { world: 2, directory, seed: 1, step: Number(step) } as const;
const [outcomes = []] = await runRanks([
  then === "await" || then === "call on" ? { ...task, do: "async-save", then } : { ...task, do: "save" },
]);
process.stdout.write(outcomes.map(({ error }) => `${error === "" ? "saved" : error}\n`).join(""));
