/** Gives an asynchronous save up as soon as it has begun, waits for its Worker, and ends. @module */
import { existsSync } from "node:fs";
import process from "node:process";
import { asyncSave, CheckpointStager } from "../../doors/checkpoint.ts";
import { launch, openModel } from "../../mod.ts";
import { givenUpSavesEnd } from "../../src/checkpoint/sharded/pending.ts";
import { LOCK_FILE } from "../../src/locks/folder_lock.ts";
import { TINY_LLAMA } from "../checkpoint/bed.ts";

const [directory = ""] = process.argv.slice(2);
const tell = (what: string, is: boolean): void => void process.stdout.write(`${what}: ${is}\n`);
const isHeld = (): boolean => existsSync(`${directory}/${LOCK_FILE}`);

await using run = await launch({ memoryBytes: 2 ** 26 });
const model = await openModel(run, TINY_LLAMA);
await model.load();
using stager = new CheckpointStager(run.device);
asyncSave({ directory, step: 1, model, group: run.group, state: {}, stager })[Symbol.dispose]();
tell("held", isHeld()); // its Worker has had no turn of the event loop
tell("ended", await givenUpSavesEnd());
tell("held", isHeld());
