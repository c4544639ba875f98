/**
 * Joins the ranks and prints how many they are.
 *
 * @module
 */

import process from "node:process";
import { launch } from "../../../mod.ts";

await using run = await launch();
process.stdout.write(`${run.group.size}\n`);
