/** A loop of one's own in which rank 0 alone saves the model, in the folder that it is given; with `last`, after all else. @module */
import process from "node:process";
import { fullyShard, launch, openModel } from "../../../mod.ts";
import { SIZES } from "../loop_ranks.ts";

const [folder = "", when] = process.argv.slice(2);
await using run = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 26 });
const model = await openModel(run, SIZES);
fullyShard(model, { mesh: run.mesh });
await model.load();
if (run.isMain) await model.save(folder);
if (when !== "last") run.group.barrier("the next step");
