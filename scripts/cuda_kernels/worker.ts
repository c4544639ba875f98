/**
 * Does a share of the jobs of `main.ts`, as a process of its own: the compiler keeps one core busy. Arguments: the number of this
 * share, how many there are, `all`, `new` or `few` (see `Selection`), and the kernel to compile alone, if any. Prints each outcome as a line of JSON.
 *
 * @module
 */
import process from "node:process";
import { readKernelTexts } from "../../src/device/cuda/texts.ts";
import { findCompiler, jobsToDo, outcomeOf } from "./compile.ts";

const [share, shares, which, only] = process.argv.slice(2);
const [nvrtc, texts] = [await findCompiler(), await readKernelTexts()];
if (nvrtc === undefined) throw new Error("NVRTC was there, and is no more");
const selection = { all: which === "all", recompiles: which === "few", only };
for (const [i, job] of jobsToDo(nvrtc, texts, selection).entries()) {
  if (i % Number(shares) === Number(share)) process.stdout.write(`${JSON.stringify(outcomeOf(nvrtc, texts, job))}\n`);
}
