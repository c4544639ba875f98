/**
 * Log lines and durations.
 *
 * @module
 */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { ArgumentError } from "../../src/errors.ts";
import { formatDuration, sleep } from "../../src/runtime/clock.ts";
import type { LogRecord } from "../../src/runtime/log.ts";
import { formatLogRecord, Logger, logLevelFrom } from "../../src/runtime/log.ts";

describe("Logger", () => {
  it("gives the sink each message with its rank and time", () => {
    const records: LogRecord[] = [];
    const before = Date.now();
    new Logger({ sink: (record) => records.push(record), rank: 1 }).warn("Peer is late");
    const time = records[0]?.time ?? NaN;
    assert.ok(time >= before && time <= Date.now());
    assert.deepEqual(records, [{ time, level: "warn", rank: 1, message: "Peer is late" }]);
  });

  it("drops lines below its level", () => {
    const said: string[] = [];
    const options = { sink: (record: LogRecord): void => void said.push(`${record.level} ${record.message}`) };
    for (const level of ["debug", "error"] as const) {
      const logger = new Logger({ ...options, level });
      logger.debug("a");
      logger.info("b");
      logger.warn("c");
      logger.error("d");
    }
    assert.deepEqual(said, ["debug a", "info b", "warn c", "error d", "error d"]);
  });

  it("once() speaks on rank 0 only", () => {
    const said: (number | undefined)[] = [];
    const logger = new Logger({ sink: ({ rank }) => said.push(rank) });
    logger.once().info("x");
    for (const rank of [0, 1, 2]) logger.withRank(rank).once().info("x");
    assert.deepEqual(said, [undefined, 0]);
  });
});

describe("formatLogRecord()", () => {
  it("writes level, rank and sentence", () => {
    const record: LogRecord = { time: 0, level: "warn", rank: 3, message: "Late" };
    assert.equal(formatLogRecord(record), "warn  [rank 3] Late");
    assert.equal(formatLogRecord({ ...record, rank: undefined, level: "error" }), "error Late");
    assert.equal(formatLogRecord({ ...record, rank: undefined, message: "a\nb" }), "warn  a\n      b");
    const colored = formatLogRecord({ ...record, rank: undefined }, true);
    assert.equal(colored, "\u001b[33mwarn \u001b[39m Late");
  });
});

it("logLevelFrom() reads a name", () => {
  assert.equal(logLevelFrom("DEBUG"), "debug");
  assert.throws(() => logLevelFrom("loud"), ArgumentError);
});

describe("clock", () => {
  it("formatDuration() suits people", () => {
    const cases: [number, string][] = [
      [0, "0 ms"],
      [999.4, "999 ms"],
      [1000, "1.0 s"],
      [59_900, "59.9 s"],
      [59_960, "1 min 00 s"],
      [245_000, "4 min 05 s"],
      [3_599_600, "1 h 00 min"],
      [7_980_000, "2 h 13 min"],
    ];
    for (const [ms, text] of cases) assert.equal(formatDuration(ms), text);
  });

  it("sleep() takes its time", async () => {
    const before = performance.now();
    await sleep(20);
    assert.ok(performance.now() - before >= 19);
  });
});
