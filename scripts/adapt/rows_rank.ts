/**
 * A rank that takes steps of rows and trains on none: `rows_rank.ts <model> <rows> <batch> <steps> <state> <out>`. It goes on where the
 * state's file says, if there is one, and leaves the new state there and the ids of its rows in `<out>-<rank>.json`.
 *
 * @module
 */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import process from "node:process";
import { launch, openModel, textData } from "../../mod.ts";
import { SEQUENCE_LENGTH } from "./inputs.ts";
import { samplesOf } from "./own.ts";

const [base = "", rows = "", batch = "", steps = "", state = "", out = ""] = process.argv.slice(2);
await using run = await launch();
const model = await openModel(run, base);
using data = await textData(run, model, rows, { sequenceLength: SEQUENCE_LENGTH, batch: Number(batch) });
if (existsSync(state)) data.restore(JSON.parse(readFileSync(state, "utf8")));
const taken: string[] = [];
for await (const step of data.take(Number(steps))) taken.push(...samplesOf(step).map(({ ids }) => ids.join()));
writeFileSync(`${out}-${run.group.rank}.json`, JSON.stringify(taken));
run.group.barrier("all ranks have read the state");
if (run.isMain) writeFileSync(state, JSON.stringify(data.state()));
