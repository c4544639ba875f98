/**
 * Builds the C twins with gcc.
 *
 * @module
 */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import type { TemporaryDirectory } from "../support/temporary.ts";

/**
 * Builds a shared library.
 *
 * @param source file in `tests/native/`
 * @param directory folder of the built library
 * @returns its path
 */
export function buildTwin(source: string, directory: TemporaryDirectory): string {
  const path = directory.file(`${source}.so`);
  const file = fileURLToPath(new URL(source, import.meta.url));
  const options = ["-std=c11", "-Wall", "-Werror", "-O1", "-shared", "-fPIC"];
  const { status, stderr, error } = spawnSync("gcc", [...options, "-o", path, file], { encoding: "utf8" });
  assert.equal(status, 0, `gcc cannot build ${file}: ${error?.message ?? stderr}`);
  return path;
}
