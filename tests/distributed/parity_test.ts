/**
 * FSDP and DDP on several ranks against one rank: the same bits.
 *
 * @module
 */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { openDevice } from "../../doors/device.ts";
import { LibraryNotFoundError, UnsupportedError } from "../../doors/errors.ts";
import { runProcesses } from "../../scripts/parity/processes.ts";
import { casesOf, compare, hybridCasesOf, runCase } from "../../scripts/parity/traces.ts";

async function hasNative(): Promise<boolean> {
  try {
    (await openDevice("cpu", { cpuMath: "native", memoryBytes: 2 ** 24 })).dispose();
    return true;
  } catch (error) {
    if (error instanceof LibraryNotFoundError || error instanceof UnsupportedError) return false;
    throw error;
  }
}

const skip = !await hasNative() && "native kernels do not run here";

describe("parity", () => {
  for (const [world, tied] of [[2, true], [3, false]] as const) {
    it(`fullyShard() and replicate() give the same bits on ${world} ranks as one rank that accumulates`, async () => {
      const [first, ...others] = casesOf(world, { tied, steps: 4 });
      assert.ok(first !== undefined && others.length === 5);
      const reference = await runCase(first.name, first.ranks, first.training, "wasm");
      assert.equal(reference.losses.length, 4);
      for (const { name, ranks, training } of others) {
        const pair = compare(reference, await runCase(name, ranks, training, "wasm"));
        assert.deepEqual(pair, { ...pair, max_ulp_loss: 0, max_ulp_grad_norm: 0, max_ulp_weights: 0 });
      }
    });
  }

  it("bfloat16 gives the same bits sharded, replicated and accumulated, where sums are float32", async () => {
    const precision = { paramDtype: "bfloat16", reduceDtype: "float32" };
    const [first, ...others] = casesOf(2, { tied: false, steps: 3, precision });
    assert.ok(first !== undefined && others.length === 4);
    const reference = await runCase(first.name, first.ranks, first.training, "wasm");
    for (const { name, ranks, training } of others) {
      const pair = compare(reference, await runCase(name, ranks, training, "wasm"));
      assert.deepEqual(pair, { ...pair, max_ulp_loss: 0, max_ulp_grad_norm: 0, max_ulp_weights: 0 });
    }
  });

  for (const [replicas, shard] of [[2, 2], [2, 1]] as const) {
    it(`HSDP on ${replicas} x ${shard} ranks gives the bits of plain parameters, summed in its order`, async () => {
      const [first, ...others] = hybridCasesOf(replicas, shard, { tied: true, steps: 3 });
      assert.ok(first !== undefined && others.length === 2);
      const reference = await runCase(first.name, first.ranks, first.training, "wasm");
      for (const { name, ranks, training } of others) {
        const pair = compare(reference, await runCase(name, ranks, training, "wasm"));
        assert.deepEqual(pair, { ...pair, max_ulp_loss: 0, max_ulp_grad_norm: 0, max_ulp_weights: 0 });
      }
    });
  }

  for (const runtimes of [["bun"], ["deno"], ["bun", "deno"]] as const) {
    it(`processes under ${runtimes.join(" and ")} give the bits that Workers give`, { timeout: 60_000 }, async () => {
      const cases = casesOf(2, { tied: true, steps: 3 }).filter(({ ranks }) => ranks === 2);
      assert.equal(cases.length, 3);
      for (const trace of await runProcesses(cases, 2, runtimes, "wasm")) {
        const { name, training } = cases.find((one) => one.name === trace.name) ?? assert.fail(trace.name);
        const pair = compare(await runCase(name, 2, training, "wasm"), trace);
        assert.deepEqual(pair, { ...pair, max_ulp_loss: 0, max_ulp_grad_norm: 0, max_ulp_weights: 0 });
      }
    });
  }

  it(
    "native kernels give the same bits too, on Workers, processes of both runtimes, and one rank",
    { skip },
    async () => {
      const cases = casesOf(2, { tied: true, steps: 3 });
      const [first, ...others] = cases;
      assert.ok(first !== undefined);
      const reference = await runCase(first.name, first.ranks, first.training, "native");
      const traces = [...await runProcesses(cases.filter(({ ranks }) => ranks === 2), 2, ["bun", "deno"], "native")];
      assert.equal(traces.length, 3);
      for (const { name, ranks, training } of others) traces.push(await runCase(name, ranks, training, "native"));
      for (const trace of traces) {
        const pair = compare(reference, trace);
        assert.deepEqual(pair, { ...pair, max_ulp_loss: 0, max_ulp_grad_norm: 0, max_ulp_weights: 0 });
      }
    },
  );

  it("compare() sees that other world sizes are other sums", async () => {
    const traceOf = async (world: number): ReturnType<typeof runCase> => {
      const found = casesOf(world, { tied: true, steps: 2 })[1];
      assert.ok(found !== undefined);
      return await runCase(found.name, found.ranks, found.training, "wasm");
    };
    assert.ok(compare(await traceOf(2), await traceOf(1)).max_ulp_weights > 0);
  });
});
