/**
 * Builds the C twins with gcc, where there is one.
 *
 * @module
 */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import type { TemporaryDirectory } from "../support/temporary.ts";

/** Why twins cannot be built here; undefined where they can. */
export function whyNoCompiler(): string | undefined {
  return spawnSync("gcc", ["--version"]).status === 0 ? undefined : "needs gcc";
}

/**
 * Builds a shared library.
 *
 * @param source file in `tests/native/`
 * @param directory where the library is put
 * @returns its path
 */
export function buildTwin(source: string, directory: TemporaryDirectory): string {
  const path = directory.file(`${source}.so`);
  const file = fileURLToPath(new URL(source, import.meta.url));
  const { status, stderr } = spawnSync("gcc", [
    "-std=c11",
    "-Wall",
    "-Werror",
    "-O1",
    "-shared",
    "-fPIC",
    "-o",
    path,
    file,
  ]);
  assert.equal(status, 0, String(stderr));
  return path;
}
