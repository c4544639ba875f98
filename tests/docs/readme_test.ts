/**
 * The code in the README is the code of the examples.
 *
 * @module
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, it } from "node:test";

const root = new URL("../../", import.meta.url);
const read = (file: string): string => readFileSync(new URL(file, root), "utf8");

describe("README.md", () => {
  it("shows examples/minimal.ts as it is", () => {
    const code = read("examples/minimal.ts").replace(/^\/\*\*.*?\*\/\n/s, "");
    assert.ok(code.startsWith("import "));
    assert.ok(read("README.md").includes(`\`\`\`ts\n${code}\`\`\``));
  });
});
