/**
 * What the README shows is what the examples run.
 *
 * @module
 */
import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { describe, it } from "node:test";

const root = new URL("../../", import.meta.url);
const read = (file: string): string => readFileSync(new URL(file, root), "utf8");

describe("README.md", () => {
  it("shows examples/minimal.ts as it is", () => {
    const code = read("examples/minimal.ts").replace(/^\/\*\*.*?\*\/\n/s, "");
    assert.ok(code.startsWith("import "));
    assert.ok(read("README.md").includes(`\`\`\`ts\n${code}\`\`\``));
  });

  it("links to files that exist", () => {
    const documents = readdirSync(new URL("docs/", root)).filter((name) => name.endsWith(".md"));
    for (const file of ["README.md", ...documents.map((name) => `docs/${name}`)]) {
      const folder = file.includes("/") ? "docs/" : "";
      for (const [, target = ""] of read(file).matchAll(/\]\(([^)#:]+)\)/g)) {
        assert.ok(existsSync(new URL(`${folder}${target}`, root)), `${file} links to ${target}`);
      }
    }
  });

  it("names npm scripts that exist", () => {
    const { scripts }: { scripts: Record<string, string> } = JSON.parse(read("package.json"));
    for (const [, name = ""] of read("README.md").matchAll(/npm run ([\w:]+)/g)) assert.ok(name in scripts, name);
  });
});
