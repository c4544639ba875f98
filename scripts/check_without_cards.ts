/**
 * Checks that the library does not depend on NVIDIA's cards: compiles a copy of its sources from which the folders of CUDA and NCCL and
 * the declarations of their libraries are left out. Only the lists that register them, and `fullyshard doctor`, may miss them.
 *
 * @module
 */

import { execFileSync } from "node:child_process";
import { cpSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";

/** What is left out. */
const CARDS: readonly string[] = [
  "src/device/cuda",
  "src/comm/data/nccl",
  ...["cublaslt", "cuda", "cudart", "cudnn", "nccl", "nvml", "nvrtc"].map((name) => `src/ffi/bindings/${name}.ts`),
];

/** Files that may name it: the list of devices, the list of backends, and what tells of the libraries that a machine has. */
const REGISTRATIONS: readonly string[] = [
  "src/cli/doctor.ts",
  "src/cli/doctor_cuda.ts",
  "src/comm/registry.ts",
  "src/device/registry.ts",
];

process.chdir(fileURLToPath(new URL("..", import.meta.url)));
const copy = mkdtempSync(join(tmpdir(), "fullyshard-cards-"));
try {
  for (const path of ["mod.ts", "doors", "src", "wasm/mod.ts", "wasm/native.ts", "wasm/digests.ts"]) {
    cpSync(path, join(copy, path), { recursive: true });
  }
  for (const path of CARDS) rmSync(join(copy, path), { recursive: true }); // throws where there is none
  symlinkSync(join(process.cwd(), "node_modules"), join(copy, "node_modules"));
  const config: { include: readonly string[] } = JSON.parse(readFileSync("tsconfig.json", "utf8"));
  const include = ["mod.ts", "doors", "src", "wasm/*.ts"];
  writeFileSync(join(copy, "tsconfig.json"), JSON.stringify({ ...config, include }));
  const found = compile(copy);
  const missing = found.filter((line) => line.includes("error TS2307")).map((line) => line.replace(/\(.*/s, ""));
  const wrong = found.filter((line) => !REGISTRATIONS.some((path) => line.startsWith(`${path}(`)));
  const unused = REGISTRATIONS.filter((path) => !missing.includes(path));
  for (const line of wrong) process.stderr.write(`${line}\n`);
  for (const path of unused) process.stderr.write(`${path}: it names nothing of the cards, so it is no registration\n`);
  if (wrong.length > 0 || unused.length > 0) {
    const most = "only these files may name CUDA and NCCL";
    process.stderr.write(`Without the cards the library does not compile: ${most}: ${REGISTRATIONS.join(", ")}\n`);
    process.exitCode = 1;
  } else {
    const count = CARDS.length;
    process.stdout.write(
      `Without ${count} folders and files of the cards all else compiles, but for their registrations\n`,
    );
  }
} finally {
  rmSync(copy, { recursive: true });
}

/** Errors of the compiler in a folder, one a line. */
function compile(folder: string): readonly string[] {
  try {
    execFileSync("node", ["node_modules/typescript/bin/tsc", "--noEmit", "--pretty", "false"], { cwd: folder });
    return [];
  } catch (error) {
    if (!(error instanceof Error && "stdout" in error)) throw error;
    const lines = String(error.stdout).split("\n").filter((line) => /^\S+\(\d+,\d+\): error /.test(line));
    if (lines.length === 0) throw error;
    return lines;
  }
}
