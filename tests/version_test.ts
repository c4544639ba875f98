/** The version is one, wherever it is written. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { VERSION } from "../src/version.ts";

for (const manifest of ["package.json", "deno.json"]) {
  test(`VERSION is that of ${manifest}`, () => {
    const { version }: { version: string } = JSON.parse(
      readFileSync(new URL(`../${manifest}`, import.meta.url), "utf8"),
    );
    assert.equal(VERSION, version);
  });
}
