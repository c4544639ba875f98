/**
 * Finds Bun and Deno from plain Node: FULLYSHARD_BUN and FULLYSHARD_DENO, the packages installed in the project, then PATH. The packages are asked for their binaries
 * directly, because their links in `node_modules/.bin` work only if npm was allowed to run their install scripts.
 *
 * @module
 */

import { accessSync, closeSync, constants, openSync, readSync } from "node:fs";
import { createRequire } from "node:module";
import { delimiter, join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";

const platformNames = { linux: "linux", darwin: "darwin" };
const bunArch = { x64: "x64", arm64: "aarch64" };

/** Files of the packages that carry the binaries, by runtime. */
function packageFiles(name) {
  const os = platformNames[process.platform];
  if (os === undefined) return [];
  if (name === "bun") {
    const base = `@oven/bun-${os}-${bunArch[process.arch] ?? process.arch}`;
    // Its install script moves the binary out of the platform's package.
    return ["bun/bin/bun.exe", `${base}/bin/bun`, `${base}-musl/bin/bun`];
  }
  return [`@deno/${os}-${process.arch}${os === "linux" ? "-glibc" : ""}/deno`];
}

/**
 * Finds a runtime.
 *
 * @param {"bun" | "deno"} name its name
 * @returns {string | undefined} path of its binary
 */
export function findRuntime(name) {
  const named = process.env[`FULLYSHARD_${name.toUpperCase()}`];
  if (named) return named;
  for (const from of [join(process.cwd(), "package.json"), fileURLToPath(import.meta.url)]) {
    const folders = createRequire(from).resolve.paths("any") ?? [];
    for (const file of packageFiles(name)) {
      const found = folders.map((folder) => join(folder, file)).find(isProgram);
      if (found !== undefined) return found;
    }
  }
  return (process.env.PATH ?? "").split(delimiter).filter((folder) => folder !== "")
    .map((folder) => join(folder, name)).find(isProgram);
}

/** The variables of this process, with PATH and two names of our own leading to the runtimes that were found. */
export function variablesWithRuntimes() {
  return {
    ...process.env,
    FULLYSHARD_BUN: findRuntime("bun"),
    FULLYSHARD_DENO: findRuntime("deno"),
  };
}

/** True if a file is a binary or a script: the bun package leaves a text without `#!` where its install script did not run. */
function isProgram(file) {
  let descriptor;
  try {
    accessSync(file, constants.X_OK);
    descriptor = openSync(file, "r");
    const start = Buffer.alloc(4);
    readSync(descriptor, start, 0, 4, 0);
    return ["7f454c46", "cffaedfe", "cafebabe"].includes(start.toString("hex")) ||
      start.toString("latin1").startsWith("#!");
  } catch {
    return false;
  } finally {
    if (descriptor !== undefined) closeSync(descriptor);
  }
}
