/** Begins an asynchronous save and ends: nobody awaits it. @module */
import process from "node:process";
import { AdamW, launch, openModel } from "../../mod.ts";
import { asyncSave, CheckpointStager } from "../../doors/checkpoint.ts";

const [directory = ""] = process.argv.slice(2);
const sizes = { vocab_size: 64, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4 };
await using run = await launch();
const model = await openModel(run, { model_type: "llama", ...sizes }, { fsdpPlan: "auto" });
const optimizer = new AdamW(model.parameters());
using stager = new CheckpointStager(run.device);
asyncSave({ directory, step: 1, model, optimizer, group: run.group, state: {}, stager });
