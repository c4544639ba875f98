/** Ranks that SLURM's srun started. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { ConfigError } from "../../src/errors.ts";
import { type RankEnvironment, readRankEnvironment } from "../../src/runtime/rank_environment.ts";
import type { EnvName } from "../../src/runtime/variables.ts";
import { firstHost } from "../../src/runtime/slurm.ts";

type Values = Partial<Record<EnvName, string>>;

const read = (values: Values): RankEnvironment | undefined => readRankEnvironment((name) => values[name]);

/** The variables that srun sets for task 1, on the second of two hosts. */
const task: Values = {
  SLURM_PROCID: "5",
  SLURM_STEP_NUM_TASKS: "8",
  SLURM_NTASKS: "8",
  SLURM_LOCALID: "1",
  SLURM_STEP_TASKS_PER_NODE: "4(x2)",
  SLURM_NODEID: "1",
  SLURM_STEP_NODELIST: "gpu[07,09]",
  SLURM_JOB_ID: "4242",
  SLURM_STEP_ID: "0",
};

describe("readRankEnvironment() of SLURM", () => {
  it("gives a task its rank, and the first host as where ranks meet", () => {
    assert.deepEqual(read(task), {
      launcher: "slurm",
      rank: 5,
      worldSize: 8,
      localRank: 1,
      localWorldSize: 4,
      groupRank: 1,
      masterAddr: "gpu07",
      masterPort: 20_000 + 4242 * 31 % 10_000,
      runId: "slurm-4242-0",
    });
    const chosen = read({ ...task, MASTER_ADDR: "10.0.0.1", MASTER_PORT: "29500", SLURM_NTASKS_PER_NODE: "4" });
    assert.deepEqual([chosen?.masterAddr, chosen?.masterPort], ["10.0.0.1", 29500]);
  });

  it("takes torchrun's variables before, unless SLURM is chosen", () => {
    const both: Values = { ...task, RANK: "1", WORLD_SIZE: "2" };
    assert.equal(read(both)?.rank, 1);
    assert.equal(read({ ...both, FULLYSHARD_LAUNCHER: "torchrun" })?.rank, 1);
    assert.equal(read({ ...both, FULLYSHARD_LAUNCHER: "slurm" })?.rank, 5);
    assert.equal(read({ ...task, FULLYSHARD_LAUNCHER: "torchrun" }), undefined);
    assert.throws(() => read({ FULLYSHARD_LAUNCHER: "slurm" }), /SLURM_STEP_NODELIST: expected to be set by srun/);
    assert.throws(() => read({ FULLYSHARD_LAUNCHER: "pbs" }), /expected torchrun, mpi or slurm, got "pbs"/);
  });

  it("takes a batch script and a step of one task for processes on their own", () => {
    const { SLURM_STEP_NODELIST: _, ...batch } = task;
    assert.equal(read({ ...batch, SLURM_PROCID: "0" }), undefined);
    assert.equal(read({ ...task, SLURM_PROCID: "0", SLURM_STEP_NUM_TASKS: "1" }), undefined);
  });

  it("refuses tasks that are not spread host by host, and what it cannot read", () => {
    const refuses = (values: Values, pattern: RegExp): void =>
      assert.throws(() => read({ ...task, ...values }), (error) => {
        return error instanceof ConfigError && pattern.test(error.message);
      });
    refuses({ SLURM_PROCID: "3" }, /SLURM_PROCID: expected rank 5, as this is task 1 of host 1 with 4 on each/);
    refuses({ SLURM_STEP_TASKS_PER_NODE: "4,2" }, /SLURM_NTASKS_PER_NODE: expected a whole number from 0, got nothing/);
    refuses({ SLURM_STEP_NODELIST: "[1-2]" }, /SLURM_STEP_NODELIST: expected a list of hosts/);
  });
});

describe("firstHost()", () => {
  it("reads SLURM's lists", () => {
    for (
      const [list, first] of [
        ["node1", "node1"],
        ["node1,node2", "node1"],
        ["node[01-04,07],gpu3", "node01"],
        ["a-[9,12]-ib", "a-9-ib"],
        ["a.b.c,d[1-2]", "a.b.c"],
        ["", undefined],
      ] as const
    ) assert.equal(firstHost(list), first);
  });
});
