/**
 * FSDP and DDP on several ranks against one rank: the same bits.
 *
 * @module
 */
import assert from "node:assert/strict";
import { describe } from "node:test";
import { runProcesses } from "../../scripts/parity/processes.ts";
import { casesOf, compare, hybridCasesOf, runCases } from "../../scripts/parity/traces.ts";
import { skipWithoutNative } from "../support/available.ts";
import { assertSameBits, trainAlike } from "../support/parity.ts";
import { longTest, onlyInAll, sharedTest as it } from "../support/share.ts";

const skip = await skipWithoutNative();

describe("parity", () => {
  for (const [world, tied] of [...[[3, false]] as const, ...onlyInAll([[2, true]] as const)]) {
    it(`fullyShard() and replicate() give the same bits on ${world} ranks as one rank that accumulates`, async () => {
      const cases = casesOf(world, { tied, steps: 4 });
      assert.equal(cases.length, 6);
      assert.equal((await trainAlike(cases)).losses.length, 4);
    });
  }

  for (const [world, tied] of [...[[2, true]] as const, ...onlyInAll([[4, false]] as const)]) {
    it(`dropout gives the same bits sharded, replicated and accumulated, on ${world} ranks as on one`, async () => {
      const cases = casesOf(world, { tied, steps: 3, dropout: true });
      assert.equal((await trainAlike(cases)).losses.length, 3);
    });
  }

  for (const [world, tied] of [...[[3, false]] as const, ...onlyInAll([[2, true], [4, true]] as const)]) {
    it(`LoRA gives the same bits sharded, replicated and accumulated, on ${world} ranks as on one`, async () => {
      const cases = casesOf(world, { tied, steps: 3, lora: true });
      assert.equal((await trainAlike(cases)).losses.length, 3);
    });
  }

  for (const optimizer of ["muon", ...onlyInAll(["adamw8bit", "lion", "adafactor"] as const)] as const) {
    const usual = [[3, false, true]] as const;
    for (const [world, tied, resumed] of [...usual, ...onlyInAll([[2, true, false], [4, true, false]] as const)]) {
      const what = `${optimizer} gives the same bits sharded, replicated and accumulated`;
      it(`${what}, on ${world} ranks as on one${resumed ? ", resumed" : ""}`, async () => {
        const cases = casesOf(world, { tied, steps: 4, optimizer, resumed });
        assert.equal((await trainAlike(cases)).losses.length, 4);
      });
    }
  }

  longTest("LoRA in bfloat16 gives the same bits sharded, replicated and accumulated", async () => {
    const precision = { paramDtype: "bfloat16", reduceDtype: "float32" };
    await trainAlike(casesOf(2, { tied: false, steps: 3, precision, lora: true }));
  });

  it("bfloat16 gives the same bits sharded, replicated and accumulated, where sums are float32", async () => {
    const precision = { paramDtype: "bfloat16", reduceDtype: "float32" };
    const cases = casesOf(2, { tied: false, steps: 3, precision });
    assert.equal(cases.length, 5);
    await trainAlike(cases);
  });

  for (const [replicas, shard] of [...[[2, 2]] as const, ...onlyInAll([[2, 1]] as const)]) {
    it(`HSDP on ${replicas} x ${shard} ranks gives the bits of plain parameters, summed in its order`, async () => {
      const cases = hybridCasesOf(replicas, shard, { tied: true, steps: 3 });
      assert.equal(cases.length, 3);
      await trainAlike(cases);
    });
  }

  // Both runtimes start the same processes; the Workers that they are compared with are this runtime's.
  for (const runtimes of [...[["bun", "deno"]] as const, ...onlyInAll([["bun"], ["deno"]] as const)]) {
    it(`processes under ${runtimes.join(" and ")} give the bits that Workers give`, { timeout: 60_000 }, async () => {
      const cases = casesOf(2, { tied: true, steps: 3 }).filter(({ ranks }) => ranks === 2);
      assert.equal(cases.length, 3);
      const expected = await runCases(cases, "wasm");
      const traces = await runProcesses(cases, 2, runtimes, "wasm");
      assert.deepEqual(traces.map(({ name }) => name), cases.map(({ name }) => name));
      for (const [i, trace] of traces.entries()) assertSameBits(expected[i] ?? assert.fail(trace.name), trace);
    });
  }

  longTest(
    "native kernels give the same bits too, on Workers, processes of both runtimes, and one rank",
    { skip },
    async () => {
      const cases = casesOf(2, { tied: true, steps: 3 });
      const [reference, ...workers] = await runCases(cases, "native");
      assert.ok(reference !== undefined);
      const processes = await runProcesses(cases.filter(({ ranks }) => ranks === 2), 2, ["bun", "deno"], "native");
      assert.deepEqual([workers.length, processes.length], [cases.length - 1, 3]);
      for (const trace of [...workers, ...processes]) assertSameBits(reference, trace);
    },
  );

  longTest("compare() sees that other world sizes are other sums", async () => {
    const cases = [2, 1].flatMap((world) => casesOf(world, { tied: true, steps: 2 }).slice(1, 2));
    const [two, one] = await runCases(cases, "wasm");
    assert.ok(two !== undefined && one !== undefined && compare(two, one).max_ulp_weights > 0);
  });
});
