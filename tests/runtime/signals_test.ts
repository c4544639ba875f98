/** Being asked to stop. @module */
import assert from "node:assert/strict";
import process from "node:process";
import { test } from "node:test";
import { sleep } from "../../src/runtime/clock.ts";
import { eventTurn, exitCodeOf, SAME_SIGNAL_MS, STOP_SIGNALS, watchStopSignals } from "../../src/runtime/signals.ts";

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
    assert.equal(exitCodeOf(signal), { SIGTERM: 143, SIGHUP: 129, SIGINT: 130, SIGUSR1: 138 }[signal]);
  });
}

test("watchStopSignals() sees a signal within two steps of 60 ms", { timeout: 10_000 }, async () => {
  using stop = watchStopSignals();
  const step = async (): Promise<void> => {
    const until = performance.now() + 60;
    while (performance.now() < until);
    await eventTurn();
  };
  for (let i = 0; i < 5; i++) await step();
  process.kill(process.pid, "SIGTERM");
  for (let i = 0; i < 2; i++) await step();
  assert.equal(stop.signal, "SIGTERM");
});

test(
  "watchStopSignals() is not ended by the second SIGHUP of a terminal that was closed",
  { timeout: 10_000 },
  async () => {
    let seen = 0;
    const count = (): void => void seen++;
    process.on("SIGHUP", count);
    using stop = watchStopSignals();
    process.kill(process.pid, "SIGHUP");
    while (stop.signal === undefined || seen < 1) await eventTurn();
    process.kill(process.pid, "SIGHUP");
    // A signal that Deno has not handled yet would end the process once no listener is left.
    while (seen < 2) await eventTurn();
    assert.equal(stop.signal, "SIGHUP");
    process.removeListener("SIGHUP", count);
  },
);

test("watchStopSignals() takes a signal that comes twice at once as one, and leaves a later one to the system", {
  timeout: 10_000,
}, async () => {
  let seen = 0;
  const count = (): void => void seen++;
  process.on("SIGTERM", count);
  const before = process.listenerCount("SIGTERM");
  using stop = watchStopSignals();
  process.kill(process.pid, "SIGTERM");
  while (seen < 1) await eventTurn();
  assert.equal(process.listenerCount("SIGTERM"), before + 1);
  process.kill(process.pid, "SIGTERM");
  while (seen < 2) await eventTurn();
  assert.equal(stop.signal, "SIGTERM");
  await sleep(SAME_SIGNAL_MS + 100);
  assert.equal(process.listenerCount("SIGTERM"), before);
  process.removeListener("SIGTERM", count);
});
