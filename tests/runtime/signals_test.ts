/** Being asked to stop. @module */
import assert from "node:assert/strict";
import process from "node:process";
import { test } from "node:test";
import { eventTurn, exitCodeOf, STOP_SIGNALS, watchStopSignals } from "../../src/runtime/signals.ts";

// A test runner keeps SIGINT for itself; runs of real processes show that one.
for (const signal of STOP_SIGNALS.filter((name) => name !== "SIGINT")) {
  test(`watchStopSignals() catches ${signal} and tells of it once`, { timeout: 10_000 }, async () => {
    const told: string[] = [];
    using stop = watchStopSignals((one) => told.push(one));
    assert.equal(stop.signal, undefined);
    process.kill(process.pid, signal);
    while (stop.signal === undefined) await eventTurn();
    assert.equal(stop.signal, signal);
    assert.deepEqual(told, [signal]);
    assert.equal(exitCodeOf(signal), signal === "SIGTERM" ? 143 : 129);
  });
}
