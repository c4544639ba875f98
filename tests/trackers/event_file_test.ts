/** Records of event files, byte for byte those of TensorBoard's own writer. @module */
import assert from "node:assert/strict";
import { Buffer } from "node:buffer";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { restartRecord, scalarRecord, textRecord, versionRecord } from "../../src/trackers/event_file.ts";

test("records are TensorBoard's own, byte for byte", () => {
  const expected = readFileSync(new URL("../fixtures/trackers/events.hex", import.meta.url), "utf8").trim();
  const seconds = 1700000000.25;
  const scalars = scalarRecord(seconds, 300, { "train/loss": 2.5, "eval/loss": Infinity });
  const records = [versionRecord(seconds), scalars, restartRecord(seconds, 301), textRecord(seconds, "args", "é")];
  assert.equal(records.map((record) => Buffer.from(record).toString("hex")).join(""), expected);
});
