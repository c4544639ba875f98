/** Sharding over one axis of a mesh and replicating over the other. @module */
import assert from "node:assert/strict";
import { after, describe } from "node:test";
import { dryRun, fullyShard, scope } from "../../mod.ts";
import { deviceMesh } from "../../doors/comm.ts";
import { initializeParameters, Linear, zeros } from "../../doors/nn.ts";
import { openDry } from "../../src/comm/data/dry.ts";
import { DryDevice } from "../../src/device/dry/device.ts";
import { makeTemporaryDirectory, removeQuietly } from "../../src/runtime/files.ts";
import { Run } from "../../src/train/run.ts";
import { startRank } from "../support/rank_process.ts";
import { sharedTest as it } from "../support/share.ts";
import { errorsOf, valuesOf, world } from "../support/world.ts";
import {
  accumulate,
  type AccumulationReport,
  clearBetween,
  fail,
  type MeshLengths,
  saveAndLoad,
} from "./hsdp_ranks.ts";
import { openRank } from "./run.ts";

const folder = makeTemporaryDirectory("fullyshard-hsdp-");
after(() => removeQuietly(folder));

async function run(
  lengths: MeshLengths,
  mode: Parameters<typeof accumulate>[1][1],
): Promise<readonly AccumulationReport[]> {
  const [replicate, shard] = lengths;
  return valuesOf(await world(replicate * shard, accumulate, { data: [lengths, mode] }));
}

const unitsOf = (calls: readonly string[] | undefined, kind: string): string[] =>
  (calls ?? []).filter((call) => call.startsWith(`${kind} `)).map((call) => call.slice(kind.length + 1));

describe("fullyShard() on a mesh of two axes", () => {
  it("gathers and scatters within a replica, and sums over replicas then, unit by unit", async () => {
    for (const { calls, bytesLeft } of await run([2, 2], "all")) {
      assert.deepEqual(calls[0]?.slice(3), [
        ...["gather layers.1 shard", "reduce-scatter layers.1 shard", "all-reduce layers.1 replicate"],
        ...["gather layers.0 shard", "reduce-scatter layers.0 shard", "all-reduce layers.0 replicate"],
        ...["reduce-scatter Stack shard", "all-reduce Stack replicate"],
      ]);
      assert.equal(bytesLeft, 0);
    }
  });

  it("adds up each replica's sums until an all-reduce is required, also of units that the last pass leaves out", async () => {
    const [all, partial, nothing] = [
      await run([2, 2], "all"),
      await run([2, 2], "no all-reduce"),
      await run([2, 2], "nothing"),
    ];
    for (const [rank, { calls, refusals, norm, gradients, bytesLeft }] of partial.entries()) {
      for (const pass of [0, 1]) {
        assert.equal(unitsOf(calls[pass], "reduce-scatter").length, 3);
        assert.equal(unitsOf(calls[pass], "all-reduce").length, 0);
      }
      assert.deepEqual(unitsOf(calls[2], "reduce-scatter"), ["layers.0 shard", "Stack shard"]);
      assert.deepEqual(unitsOf(calls[2], "all-reduce").sort(), [
        ...["Stack replicate", "layers.0 replicate", "layers.1 replicate"],
      ]);
      for (const text of refusals) assert.match(text, /ArgumentError: .* is not fully reduced/);
      assert.equal(norm, partial[0]?.norm, "the norm counts each element once, alike on all ranks");
      for (const other of [all[rank], nothing[rank]]) {
        assert.ok(other !== undefined && Math.abs(other.norm - norm) <= 1e-5 * norm, `${other?.norm} is not ${norm}`);
        gradients.flat().forEach((value, i) => {
          const expected = other.gradients.flat()[i] ?? NaN;
          assert.ok(Math.abs(value - expected) <= 1e-5 * (1 + Math.abs(expected)), `${value} is not ${expected}`);
        });
      }
      assert.equal(bytesLeft, 0);
    }
    assert.equal(unitsOf(nothing[0]?.calls[0], "reduce-scatter").length, 0);
  });

  it("is replication where one rank shards, and sharding where one replicates", async () => {
    const [copies] = await run([2, 1], "all");
    assert.ok(copies !== undefined && copies.calls[0]?.includes("all-reduce Stack world"));
    const [parts] = await run([1, 2], "all");
    assert.ok(parts !== undefined);
    assert.deepEqual(parts.calls[0]?.filter((call) => call.startsWith("all-reduce")), []);
    assert.ok(Math.abs(copies.norm - parts.norm) <= 1e-5 * parts.norm);
  });

  it("forgets what was cleared before the all-reduce, and nothing else", async () => {
    const both = { head: true, layer: true };
    assert.deepEqual(valuesOf(await world(2, clearBetween)), [both, both]);
  });

  for (const [from, to] of [[[2, 2], [1, 4]], [[1, 4], [2, 2]], [[4, 1], [2, 2]]] as const) {
    it(
      `saves once what ${from.join(" x ")} ranks hold, and loads it on ${to.join(" x ")}`,
      { timeout: 60_000 },
      async () => {
        const data: [string, MeshLengths, MeshLengths] = [`${folder}/${from.join("x")}`, from, to];
        for (const { bytes, expected, same, steps } of valuesOf(await world(4, saveAndLoad, { data }))) {
          assert.equal(bytes, expected);
          assert.ok(same);
          assert.equal(steps, 1);
        }
      },
    );
  }

  for (const over of ["loopback", "shm"] as const) {
    it(`names ranks of the whole world when one fails, over ${over}`, { timeout: 60_000 }, async () => {
      const [first, , , last] = errorsOf(await world(4, fail, { over, data: "throws" }));
      assert.match(last ?? "", /injected/);
      assert.match(first ?? "", /rank 3|injected/);
      const errors = errorsOf(await world(4, fail, { over, data: "differs" }));
      assert.ok(
        errors.some((error) => /rank 2 calls gather 'layers\.0'.*rank 3 calls gather 'layers\.1'/.test(error)),
        errors.join("\n"),
      );
    });
  }

  it("needs the memory of a replica, as the dry run says", async () => {
    const numel = 64 * 64;
    const terms = async (replicate: number, shard: number) => {
      const run = await dryRun(({ device, group }) => {
        const layer = new Linear(device, 64, 64, { bias: false });
        fullyShard(layer, { mesh: deviceMesh(group, { replicate, shard }) });
        initializeParameters(layer, 0);
        return () => {
          using _step = scope();
          layer.zeroGrad();
          layer.call(zeros(device, [2, 64])).sum().backward();
        };
      }, { worldSize: replicate * shard });
      return { ...run, kinds: run.collectives.map(({ kind }) => kind).join() };
    };
    const run = await terms(8, 4);
    assert.equal(run.terms.parameters, 4 * numel / 4);
    assert.equal(run.terms["gradient shards"], 4 * numel / 4);
    assert.equal(run.kinds, "gather,reduce-scatter,all-reduce");
    assert.equal((await terms(1, 32)).kinds, "gather,reduce-scatter");
  });
});

describe("Run.hybridMesh", () => {
  it("shards within hosts and replicates across them", async () => {
    const device = new DryDevice((await openRank()).device);
    const group = openDry(device, { rank: 5, worldSize: 8 });
    const run = new Run({ device, group, localWorldSize: 4, print: () => {} });
    const { hybridMesh: { axes, shape, coordinate } } = run;
    assert.deepEqual({ axes, shape, coordinate }, { axes: ["replicate", "shard"], shape: [2, 4], coordinate: [1, 1] });
    assert.equal(run.hybridMesh, run.hybridMesh);
    const odd = new Run({ device, group, localWorldSize: 3, print: () => {} });
    assert.throws(() => odd.hybridMesh, /A mesh needs axes of positive length, got { replicate: 2\.66/);
  });

  it("follows LOCAL_WORLD_SIZE, on one host too where the backend is named", { timeout: 60_000 }, async () => {
    const id = { FULLYSHARD_RUN_ID: crypto.randomUUID(), WORLD_SIZE: "4", LOCAL_WORLD_SIZE: "2" };
    const ranks = Array.from({ length: 4 }, (_, rank) => {
      const env = { ...id, RANK: String(rank), LOCAL_RANK: String(rank % 2) };
      return startRank(new URL("./hybrid_rank.ts", import.meta.url), [], { env });
    });
    await Promise.all(ranks.map(({ ended }) => ended));
    const said = ranks.map(({ stdout, stderr }) => stdout.trim() || stderr);
    assert.deepEqual(said, ["0,1 0,2 0.5", "0,1 1,3 0.5", "2,3 0,2 0.5", "2,3 1,3 0.5"]);
  });
});
