/**
 * The script of `fullyshard train`: a training run by flags and a file of settings alone.
 *
 * @module
 */
import process from "node:process";
import { runTrainingScript } from "../train/script.ts";

process.exitCode = await runTrainingScript({ usage: "fullyshard train [flags]" });
