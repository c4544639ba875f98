/** The page of Accelerate's keys shows the tables that files are read by. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { tables, written } from "../../scripts/fsdp_config_table.ts";

/** Text whose tables are not aligned. */
function plain(text: string): string {
  return text.replace(/-{3,}/g, "---").replace(/[ \t]+/g, " ").trim();
}

test("docs/fsdp_config.md shows each key that is read, with what becomes of it", () => {
  assert.ok(tables().length > 4000);
  assert.equal(plain(written()), plain(tables()));
});
