/** A training script with a small model and faults to order: see `tiny_training.ts`. @module */
import process from "node:process";
import { trainTiny } from "./tiny_training.ts";

process.exitCode = await trainTiny(process.argv.slice(2));
