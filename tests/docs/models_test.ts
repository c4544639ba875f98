/** The page of models shows what the families themselves say. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { table, written } from "../../scripts/models_table.ts";

/** Text whose tables are not aligned. */
function plain(text: string): string {
  return text.replace(/-{3,}/g, "---").replace(/[ \t]+/g, " ").trim();
}

test("docs/models.md shows each family with its options", async () => {
  const text = await table();
  assert.match(text, /resid_pdrop/);
  assert.equal(plain(written()), plain(text));
});
