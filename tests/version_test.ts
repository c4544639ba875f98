/** The version is one, wherever it is written. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { VERSION } from "../src/version.ts";

for (const manifest of ["package.json", "deno.json", "create/package.json"]) {
  test(`VERSION is the version in ${manifest}`, () => {
    const { version }: { version: string } = JSON.parse(
      readFileSync(new URL(`../${manifest}`, import.meta.url), "utf8"),
    );
    assert.equal(VERSION, version);
  });
}

test("create-fullyshard installs this version, and the runtime that this version is tested with", () => {
  const read = (path: string) => JSON.parse(readFileSync(new URL(`../${path}`, import.meta.url), "utf8"));
  const { dependencies }: { dependencies: Record<string, string> } = read("create/package.json");
  const { devDependencies }: { devDependencies: Record<string, string> } = read("package.json");
  assert.deepEqual(dependencies, { bun: devDependencies["bun"], fullyshard: VERSION });
});
