/**
 * The suite that every transport passes: it runs the scenarios by a given runner. Every rank makes the inputs of all ranks
 * from their number, so it checks results against a straight sum in rank order, bit for bit.
 *
 * @module
 */
import { test } from "node:test";
import assert from "node:assert/strict";
import type { ProcessGroup } from "../../src/comm/process_group.ts";
import type { CommDevice } from "../support/comm_device.ts";
import { SCENARIOS, TOO_LARGE, tooLarge } from "./transport_scenarios.ts";

/** What became of a scenario on one rank. */
export interface Outcome {
  readonly ok: boolean;
  /** What it returned, or the error. */
  readonly text: string;
}

/** Runs scenarios one after another on `size` ranks, each in a fresh group; resolves with outcomes by rank and scenario. */
export type Runner = (size: number, scenarios: readonly string[]) => Promise<readonly (readonly Outcome[])[]>;
/** A rank's side of a {@link Runner}. `open` joins the group of the scenario with that number. */
export async function runScenarios(
  scenarios: readonly string[],
  device: CommDevice,
  open: (index: number) => ProcessGroup | Promise<ProcessGroup>,
): Promise<readonly Outcome[]> {
  const outcomes: Outcome[] = [];
  for (const [index, name] of scenarios.entries()) {
    const group = await open(index);
    try {
      const scenario = name === TOO_LARGE ? tooLarge : SCENARIOS[name];
      if (scenario === undefined) throw new Error(`no scenario '${name}'`);
      outcomes.push({ ok: true, text: String(scenario({ group, device })) });
    } catch (error) {
      const text = error instanceof Error ? `${error.name}: ${error.message}\n${error.stack}` : String(error);
      outcomes.push({ ok: false, text });
      group.abort(`scenario failed: ${text}`);
    } finally {
      group.dispose();
    }
  }
  return outcomes;
}
/** What every rank's message must say in the scenarios that end in an error, by rank. */
const MESSAGES: Readonly<Record<string, (rank: number) => readonly RegExp[]>> = {
  "different calls name both on every rank": () => [
    /rank 1 calls barrier 'epoch end'/,
    /rank [02-9].* calls all-reduce 'loss' \(float32, 10 elements, 40 bytes\)/,
  ],
  "different sizes name both on every rank": () => [
    /rank 0 calls all-reduce 'norm' \(float32, 10 elements/,
    /rank [1-3].* calls all-reduce 'norm' \(float32, 11 elements/,
  ],
  "different labels of gathers name both on every rank": () => [
    /rank 0 calls gather 'layers\.7 \(forward\)'/,
    /rank [1-3].* calls gather 'layers\.8 \(forward\)'/,
  ],
  "abort() stops the others with its reason": () => [
    /CollectiveError.*rank 0 stopped all ranks: the loss is NaN at step 3/,
  ],
  "a rank that left is named": (rank) => [
    rank === 0 ? /UseAfterDisposeError/ : /rank 0 has left the group while it was awaited.*barrier 'before'/,
  ],
};

/** Registers the suite for one transport. */
export function conformTransport(name: string, sizes: readonly number[], run: Runner): void {
  for (const size of sizes) {
    const scenarios = Object.keys(SCENARIOS).filter((scenario) => size > 1 || MESSAGES[scenario] === undefined);
    // Starting ranks costs more than a scenario: the first test runs them all.
    let running: ReturnType<Runner> | undefined;
    for (const [index, scenario] of scenarios.entries()) {
      test(`${name} of ${size}: ${scenario}`, { timeout: 120_000 }, async () => {
        running ??= run(size, scenarios);
        const outcomes = (await running).map((ofRank) => ofRank[index]);
        assert.equal(outcomes.length, size);
        for (const [rank, outcome] of outcomes.entries()) {
          assert.ok(outcome?.ok, `rank ${rank}: ${outcome?.text}`);
          for (const pattern of MESSAGES[scenario]?.(rank) ?? []) assert.match(outcome.text, pattern);
        }
      });
    }
  }
}
