/** FSDP1's strategies and ZeRO's stages: what each row of the table in `docs/fsdp.md` keeps and communicates. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe } from "node:test";
import { allClose } from "../support/allclose.ts";
import { valuesOf, world } from "../support/world.ts";
import { runStrategy, type StrategyReport } from "./strategies_ranks.ts";
import { sharedTest as it } from "../support/share.ts";

/** The expected memory and calls of a strategy in a step of two micro-batches of a root and two blocks. */
type Row = Omit<StrategyReport, "weights" | "share" | "isOffloaded">;

const scattered = { "reduce-scatter": 6 };
/** By the first column of the table. */
const ROWS: Readonly<Record<string, Row>> = {
  "FULL_SHARD, stage 3": { calls: { gather: 10, ...scattered }, whole: [1, 0], gradients: 0 },
  "SHARD_GRAD_OP, stage 2": { calls: { gather: 6, ...scattered }, whole: [3, 0], gradients: 0 },
  "stage 1": { calls: { gather: 3, "reduce-scatter": 3 }, whole: [3, 3], gradients: 1 },
  "NO_SHARD, stage 0": { calls: { "all-reduce": 2 }, whole: [0, 0], gradients: 0 },
  "FULL_SHARD with CPU offload, stage 3 with offload": {
    calls: { "all-gather": 10, ...scattered },
    whole: [1, 0],
    gradients: 0,
  },
  HYBRID_SHARD: { calls: { gather: 10, ...scattered, "all-reduce": 6 }, whole: [1, 0], gradients: 0 },
  HYBRID_SHARD_ZERO2: { calls: { gather: 6, ...scattered, "all-reduce": 6 }, whole: [3, 0], gradients: 0 },
};
const RANKS = 4;
const REPLICATED = "NO_SHARD, stage 0";
let replicated: Promise<readonly StrategyReport[]> | undefined;

/** The report of every rank of replicas, which has run once. */
function replicas(): Promise<readonly StrategyReport[]> {
  return replicated ??= world(RANKS, runStrategy, { data: REPLICATED }).then(valuesOf);
}

/** Sums over those ranks that keep other parts. */
function total(reports: readonly StrategyReport[], copies: number): number[] {
  return [0, 1].map((i) => reports.reduce((sum, { weights }) => sum + (weights[i] ?? NaN), 0) / copies);
}

describe("the table of strategies", () => {
  it("has a row here for each of its own", () => {
    const text = readFileSync(new URL("../../docs/fsdp.md", import.meta.url), "utf8");
    const table = text.slice(text.indexOf("| FSDP1's strategy")).split("\n\n")[0] ?? "";
    const names = table.split("\n").slice(2).map((line) => line.split("|")[1]?.trim());
    assert.deepEqual(names, Object.keys(ROWS));
  });

  for (const [name, { calls, whole, gradients }] of Object.entries(ROWS)) {
    it(`${name} keeps and communicates what it should, and trains as replicas do`, async () => {
      const reports = name === REPLICATED
        ? await replicas()
        : valuesOf(await world(RANKS, runStrategy, { data: name }));
      const copies = name === REPLICATED ? RANKS : name.startsWith("HYBRID") ? 2 : 1;
      for (const report of reports) {
        assert.deepEqual(report.calls, calls);
        assert.deepEqual(report.whole, whole);
        assert.equal(report.isOffloaded, name.includes("offload"));
        assert.ok(Math.abs(report.gradients - gradients) < 0.05, `whole gradients: ${report.gradients}`);
        assert.ok(Math.abs(report.share - copies / RANKS) < 0.05, `keeps ${report.share}`);
      }
      allClose(
        total(reports, copies),
        total(await replicas(), RANKS),
        { relative: 1e-4, absolute: 1e-3 },
        "sums of weights",
      );
    });
  }
});
