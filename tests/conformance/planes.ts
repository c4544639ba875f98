/**
 * The suite that every pair of a control plane and a data plane passes.
 *
 * @module
 */
import { test } from "node:test";
import assert from "node:assert/strict";
import { rankFunctions, valuesOf, world, type WorldOptions, type WorldRank } from "../support/world.ts";
import { CONTROL_SCENARIOS, CONTROL_SCENARIOS_OF_SEVERAL } from "./control_plane_scenarios.ts";
import { DATA_SCENARIOS, DATA_SCENARIOS_OF_SEVERAL } from "./data_plane_scenarios.ts";
import { MESSAGE_SCENARIOS } from "./message_scenarios.ts";
import { WORK_SCENARIOS } from "./work_scenarios.ts";
import type { Rank } from "./values.ts";

/** Scenarios by name. Each checks what it can on its rank, and throws if it does not hold. */
export type Scenarios = Readonly<Record<string, (rank: Rank) => void | Promise<void>>>;

const OF_ANY: Scenarios = { ...CONTROL_SCENARIOS, ...DATA_SCENARIOS, ...WORK_SCENARIOS };
const OF_SEVERAL: Scenarios = { ...CONTROL_SCENARIOS_OF_SEVERAL, ...DATA_SCENARIOS_OF_SEVERAL, ...MESSAGE_SCENARIOS };

/** Runs last: Intel MPI may close a stream that brings more bytes than its receiver expects, and then ends the process. */
const LAST = "different sizes name both on every rank";

function scenariosOf(size: number): Scenarios {
  const { [LAST]: last, ...others } = size === 1 ? OF_ANY : { ...OF_ANY, ...OF_SEVERAL };
  return last === undefined ? others : { ...others, [LAST]: last };
}

/** Names of the scenarios of a world, in the order of {@link conform}'s outcomes. */
export function scenarioNames(size: number): readonly string[] {
  return Object.keys(scenariosOf(size));
}

/** Runs all scenarios, each in a world of its own; returns what each threw, or nothing. */
export async function conform({ open, device, size }: WorldRank): Promise<readonly string[]> {
  const problems: string[] = [];
  for (const scenario of Object.values(scenariosOf(size))) {
    const group = await open();
    try {
      await scenario({ group, device });
      problems.push("");
    } catch (error) {
      problems.push(error instanceof Error ? `${error}\n${error.stack}` : String(error));
      group.abort(`scenario failed: ${error}`);
    } finally {
      group.dispose();
    }
  }
  return problems;
}

rankFunctions(import.meta.url, { conform });

/** Registers the suite for one way of running ranks. */
export function conformPlanes(
  name: string,
  sizes: readonly number[],
  options: WorldOptions<unknown> = {},
  timeout: number = 120_000,
): void {
  for (const size of sizes) {
    const scenarios = scenarioNames(size);
    // Starting ranks costs more than a scenario: the first test runs them all.
    let running: Promise<readonly (readonly string[])[]> | undefined;
    for (const [index, scenario] of scenarios.entries()) {
      test(`${name} of ${size}: ${scenario}`, { timeout }, async () => {
        running ??= world(size, conform, { ...options, groups: scenarios.length }).then(valuesOf);
        for (const [rank, problems] of (await running).entries()) {
          assert.equal(problems[index], "", `rank ${rank}: ${problems[index]}`);
        }
      });
    }
  }
}
