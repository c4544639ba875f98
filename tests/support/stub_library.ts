/**
 * Libraries whose functions do nothing, but for those that a test writes in C.
 *
 * @module
 */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import type { BindingTable } from "../../src/ffi/types.ts";
import type { TemporaryDirectory } from "./temporary.ts";

/**
 * Builds a library with gcc.
 *
 * @param bindings the functions that it has
 * @param functions definitions in C by name; null for a function that it lacks
 * @returns its path
 */
export function buildStub(
  directory: TemporaryDirectory,
  file: string,
  bindings: BindingTable,
  functions: Readonly<Record<string, string | null>>,
): string {
  const others = Object.entries(bindings).filter(([name]) => functions[name] === undefined);
  const lines = [
    ...Object.values(functions).filter((text) => text !== null),
    ...others.map(([name, { symbol = name, result }]) => {
      return result === "cstring"
        ? `const char *${symbol}(int status) { return "stub"; }`
        : `int ${symbol}() { return 0; }`;
    }),
  ];
  const source = directory.write(`${file}.c`, `${lines.join("\n")}\n`);
  const path = directory.file(file);
  const { status, stderr } = spawnSync("gcc", ["-shared", "-fPIC", "-o", path, source], { encoding: "utf8" });
  assert.equal(status, 0, `gcc cannot build ${source}: ${stderr}`);
  return path;
}
