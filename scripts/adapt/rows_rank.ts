/**
 * A rank that takes steps of rows and trains on none: `rows_rank.ts <model> <rows> <kind> <batch> <steps> <state> <out>`, of as many steps
 * as the epoch has left where `steps` is `rest`. It goes on where the state's file says, if there is one, and leaves the new state there and
 * the ids of its documents in `<out>-<rank>.json`.
 *
 * @module
 */
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import process from "node:process";
import { launch, openModel, textData, type TextDataOptions } from "../../mod.ts";
import { SEQUENCE_LENGTH } from "./inputs.ts";
import { documentsOf } from "./own.ts";

const OPTIONS: Readonly<Record<string, Pick<TextDataOptions, "packing" | "isPreference">>> = {
  apart: {},
  packed: { packing: "bfd" },
  pairs: { isPreference: true },
};

const [base = "", rows = "", kind = "", batch = "", steps = "", state = "", out = ""] = process.argv.slice(2);
await using run = await launch();
const model = await openModel(run, base);
const size = { sequenceLength: SEQUENCE_LENGTH, batch: Number(batch) };
using data = await textData(run, model, rows, { ...size, ...OPTIONS[kind] });
if (existsSync(state)) data.restore(JSON.parse(readFileSync(state, "utf8")));
const left = ((data.numSamples ?? NaN) - data.state().cursor) / size.batch;
const taken: string[] = [];
for await (const step of data.take(steps === "rest" ? left : Number(steps))) taken.push(...documentsOf(step));
writeFileSync(`${out}-${run.group.rank}.json`, JSON.stringify(taken));
run.group.barrier("all ranks have read the state");
if (run.isMain) writeFileSync(state, JSON.stringify(data.state()));
