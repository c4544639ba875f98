/** Rows that are refused before a kernel relies on them. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { type MicroBatch, requireRows } from "../../src/data/micro_batch.ts";
import { ArgumentError } from "../../src/errors.ts";

function check(rest: Pick<MicroBatch, "documentStarts" | "lengths">): void {
  const tokens = new Int32Array(8);
  requireRows({ inputIds: tokens, labels: tokens, batch: 2, seq: 4, ...rest });
}

test("requireRows() takes documents that begin where they say", () => {
  check({});
  check({ documentStarts: Int32Array.of(0, 0, 0, 0, 0, 1, 1, 3), lengths: Int32Array.of(4, 1) });
});

test("requireRows() names the token whose document begins nowhere, and the row with such a length", () => {
  const starts = "Cannot run a micro-batch with such documentStarts: ";
  const place = (token: number, row: number, got: number): string =>
    `${starts}token ${token} of row ${row} must have its own place ${token}, where a document begins, or the number of the token ` +
    `before it, got ${got}`;
  const lengths = "Cannot run a micro-batch with such lengths: expected 2 numbers from 1 to 4, got ";
  for (
    const [rest, message] of [
      [{ documentStarts: Int32Array.of(0, 0, 0, 0) }, `${starts}expected 2 × 4 numbers, got 4`],
      [{ documentStarts: Int32Array.of(1, 1, 1, 1, 0, 0, 0, 0) }, place(0, 0, 1)],
      [{ documentStarts: Int32Array.of(0, 0, 0, 0, 0, 0, 1, 1) }, place(2, 1, 1)],
      [{ documentStarts: Int32Array.of(0, 1, 0, 0, 0, 0, 0, 0) }, place(2, 0, 0)],
      [{ documentStarts: Int32Array.of(0, 0, 0, 0, -1, 0, 0, 0) }, place(0, 1, -1)],
      [{ lengths: Int32Array.of(4) }, `${lengths}1 numbers`],
      [{ lengths: Int32Array.of(4, 0) }, `${lengths}0 in row 1`],
      [{ lengths: Int32Array.of(5, 1) }, `${lengths}5 in row 0`],
    ] as const
  ) {
    assert.throws(() => check(rest), (error) => {
      assert.ok(error instanceof ArgumentError);
      assert.equal(error.message, message);
      return true;
    });
  }
});
