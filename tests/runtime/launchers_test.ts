/** Ranks of launchers other than torchrun and SLURM: those of MPI, and those that are refused. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { ConfigError, UnsupportedError } from "../../src/errors.ts";
import { enclosingLauncher, type RankEnvironment, readRankEnvironment } from "../../src/runtime/rank_environment.ts";
import { mpiLibraryOf } from "../../src/runtime/launchers.ts";
import { ENV, type EnvName } from "../../src/runtime/variables.ts";

type Values = Partial<Record<EnvName, string>>;

const read = (values: Values): RankEnvironment | undefined => readRankEnvironment((name) => values[name]);

/** Rank 1 of 2 as each launcher of MPI tells it. */
const RANKS_OF_MPI: readonly (readonly [RegExp, Values])[] = [
  [/Open MPI's mpirun/, {
    OMPI_COMM_WORLD_RANK: "1",
    OMPI_COMM_WORLD_SIZE: "2",
    OMPI_COMM_WORLD_LOCAL_RANK: "1",
    OMPI_COMM_WORLD_LOCAL_SIZE: "2",
    PMIX_RANK: "1",
    PMIX_NAMESPACE: "1335951361",
  }],
  [/MPICH's or Intel's mpiexec/, { PMI_RANK: "1", PMI_SIZE: "2", MPI_LOCALRANKID: "1", MPI_LOCALNRANKS: "2" }],
  [/MVAPICH/, { MV2_COMM_WORLD_RANK: "1", MV2_COMM_WORLD_SIZE: "2", PMI_RANK: "1", PMI_SIZE: "2" }],
  [/MVAPICH/, { MVP_COMM_WORLD_RANK: "1", MVP_COMM_WORLD_SIZE: "2" }],
  [/mpirun_rsh/, { MPIRUN_RANK: "1", MPIRUN_NPROCS: "2" }],
  [/PALS/, { PALS_RANKID: "1", PALS_LOCAL_RANKID: "1", PALS_LOCAL_SIZE: "2", PMI_RANK: "1", PMI_SIZE: "2" }],
  [/aprun/, { ALPS_APP_PE: "1", PMI_SIZE: "2" }],
];

/** Rank 1 of 2 as launchers tell it whose ranks are refused, with the name by which they are. */
const RANKS: readonly (readonly [RegExp, Values])[] = [
  [/jsrun/, { JSM_NAMESPACE_RANK: "1", JSM_NAMESPACE_SIZE: "2" }],
  [/flux run/, { FLUX_TASK_RANK: "1", FLUX_JOB_SIZE: "2" }],
  [/horovodrun/, { HOROVOD_RANK: "1", HOROVOD_SIZE: "2" }],
  [/poe/, { MP_CHILD: "1", MP_PROCS: "2" }],
  [/prterun/, { PMIX_RANK: "1", PMIX_NAMESPACE: "prterun-host-4242@1" }],
];

/** Task 1 of two of srun. */
const task: Values = {
  SLURM_PROCID: "1",
  SLURM_STEP_NUM_TASKS: "2",
  SLURM_LOCALID: "1",
  SLURM_STEP_TASKS_PER_NODE: "2",
  SLURM_NODEID: "0",
  SLURM_STEP_NODELIST: "node1",
  SLURM_JOB_ID: "7",
  SLURM_STEP_ID: "0",
};

describe("readRankEnvironment() of other launchers", () => {
  it("takes the numbers of MPI's launchers", () => {
    for (const [, values] of RANKS_OF_MPI) {
      const { launcher, rank, worldSize } = read(values) ?? assert.fail();
      assert.deepEqual([launcher, rank, worldSize], ["mpi", 1, 2]);
      assert.equal(mpiLibraryOf((name) => values[name]), "OMPI_COMM_WORLD_RANK" in values ? "openmpi" : "mpich");
    }
    const hosts: Values = { PMI_RANK: "5", PMI_SIZE: "8", MPI_LOCALRANKID: "1", MPI_LOCALNRANKS: "4" };
    const { localRank, localWorldSize, groupRank, masterAddr } = read(hosts) ?? assert.fail();
    assert.deepEqual([localRank, localWorldSize, groupRank, masterAddr], [1, 4, 1, undefined]);
    // Open MPI 5 numbers a host's ranks in an order of its own.
    const permuted: Values = { ...RANKS_OF_MPI[0]?.[1], OMPI_COMM_WORLD_LOCAL_RANK: "0" };
    assert.equal(read(permuted)?.localRank, 1);
    // A host may have more ranks than others.
    const more = read({ PMI_RANK: "3", PMI_SIZE: "4", MPI_LOCALRANKID: "2", MPI_LOCALNRANKS: "3" });
    assert.deepEqual([more?.rank, more?.worldSize, more?.localWorldSize], [3, 4, 3]);
    assert.equal(read({ ...hosts, MASTER_ADDR: "10.0.0.1", MASTER_PORT: "29500" })?.masterAddr, "10.0.0.1");
  });

  it("refuses half of MPI's variables, and those that contradict each other, in one sentence", () => {
    const own = RANKS_OF_MPI.flatMap(([, values]) => Object.keys(values))
      .filter((name) => !name.startsWith("PMIX"));
    for (const name of Object.keys(ENV)) {
      if (!own.includes(name) || name === "PMI_LOCAL_SIZE") continue;
      assert.throws(() => readRankEnvironment((one) => one === name ? "0" : undefined), ConfigError, name);
    }
    for (const size of ["", "two", "0", "-1"]) {
      assert.throws(() => read({ OMPI_COMM_WORLD_RANK: "0", OMPI_COMM_WORLD_SIZE: size }), ConfigError, size);
    }
    const wrong: readonly (readonly [Values, RegExp])[] = [
      [{ PMI_RANK: "2", PMI_SIZE: "2" }, /PMI_RANK: expected below PMI_SIZE = 2, got 2$/],
      [
        { PMI_RANK: "1", PMI_SIZE: "2", MPI_LOCALRANKID: "1" },
        /MPI_LOCALNRANKS: expected a whole number .*, got nothing$/,
      ],
      [
        { PMI_RANK: "1", PMI_SIZE: "2", MPI_LOCALRANKID: "2", MPI_LOCALNRANKS: "2" },
        /expected below MPI_LOCALNRANKS = 2/,
      ],
      [
        { OMPI_COMM_WORLD_RANK: "1", OMPI_COMM_WORLD_SIZE: "4", PMI_RANK: "0", PMI_SIZE: "2" },
        /PMI_RANK: expected 1, as OMPI_COMM_WORLD_RANK is: unset the variables of the launcher around this one, got 0$/,
      ],
      [
        { OMPI_COMM_WORLD_RANK: "1", OMPI_COMM_WORLD_SIZE: "4", PMIX_RANK: "3" },
        /PMIX_RANK: expected 1, as OMPI_COMM_WORLD_RANK is/,
      ],
      [{ FULLYSHARD_LAUNCHER: "mpi" }, /expected a process that mpirun or mpiexec started, got mpi/],
    ];
    for (const [values, pattern] of wrong) {
      assert.throws(() => read(values), (error) => error instanceof ConfigError && pattern.test(error.message));
    }
  });

  it("refuses each other rank in one sentence with the command that works", () => {
    for (const [name, values] of RANKS) {
      assert.throws(() => read(values), (error) => {
        assert.ok(error instanceof UnsupportedError);
        assert.match(error.message, name);
        assert.match(
          error.message,
          /^Cannot join the ranks of .*=1.*: start them by ('npx fullyshard run .*\S+\.\w+.*'|mpirun or mpiexec)/,
        );
        assert.doesNotMatch(error.message, /\n/);
        return true;
      });
    }
    assert.throws(() => read(RANKS[0]?.[1] ?? {}), /run --nproc-per-node 2 \S+'? /);
    assert.throws(() => read({ HOROVOD_RANK: "0" }), /run --nproc-per-node <ranks> /);
    const hosts: Values = { HOROVOD_RANK: "5", HOROVOD_SIZE: "8", HOROVOD_LOCAL_RANK: "1", HOROVOD_LOCAL_SIZE: "4" };
    assert.throws(() => read(hosts), /--nnodes 2 --node-rank <number> --master-addr <first host> --nproc-per-node 4 /);
  });

  it("refuses rank 0 as well, and a launcher of which only one variable is left", () => {
    const names = RANKS.flatMap(([, values]) => Object.keys(values)).filter((name) => name !== "PMIX_NAMESPACE");
    for (const name of Object.keys(ENV)) {
      if (names.includes(name)) {
        assert.throws(() => readRankEnvironment((one) => one === name ? "0" : undefined), UnsupportedError, name);
      }
    }
  });

  it("takes one rank alone for a process on its own, and empty variables for none", () => {
    assert.equal(read({ OMPI_COMM_WORLD_RANK: "0", OMPI_COMM_WORLD_SIZE: "1", PMIX_RANK: "0" }), undefined);
    assert.equal(read({ PMI_RANK: "0", PMI_SIZE: "1", MPI_LOCALRANKID: "0", MPI_LOCALNRANKS: "1" }), undefined);
    assert.equal(read({ PMI_RANK: "", PMI_SIZE: "", PMIX_RANK: " " }), undefined);
    // One launcher within another: the outer one has two.
    const nested: Values = { OMPI_COMM_WORLD_RANK: "0", OMPI_COMM_WORLD_SIZE: "1", PMI_RANK: "0", PMI_SIZE: "2" };
    assert.equal(read(nested)?.worldSize, 2);
  });

  it("follows torchrun's variables before, and FULLYSHARD_LAUNCHER", () => {
    for (const [, values] of [...RANKS, ...RANKS_OF_MPI]) {
      assert.equal(read({ ...values, RANK: "0", WORLD_SIZE: "3" })?.worldSize, 3);
      assert.equal(read({ ...values, FULLYSHARD_LAUNCHER: "none" }), undefined);
    }
    assert.equal(read({ ...task, FULLYSHARD_LAUNCHER: "none" }), undefined);
    assert.equal(read({ RANK: "1", WORLD_SIZE: "2", FULLYSHARD_LAUNCHER: "none" }), undefined);
  });

  it("takes PMI's and PMIx's variables that srun sets for srun's", () => {
    assert.equal(read({ ...task, PMI_RANK: "1", PMI_SIZE: "2" })?.worldSize, 2);
    assert.equal(read({ ...task, PMIX_RANK: "1", PMIX_NAMESPACE: "slurm.pmix.7.0" })?.rank, 1);
    assert.equal(read({ ...task, PMIX_RANK: "1" })?.rank, 1);
    // mpirun starts its daemons by srun, so its ranks inherit the numbers of those.
    const launcherOf = (values: Values): unknown => read({ ...task, ...values })?.launcher;
    assert.equal(launcherOf({ PMI_RANK: "3", PMI_SIZE: "8" }), "mpi");
    assert.equal(launcherOf({ PMI_RANK: "1", PMI_SIZE: "8" }), "mpi");
    assert.equal(launcherOf({ OMPI_COMM_WORLD_RANK: "2", OMPI_COMM_WORLD_SIZE: "4" }), "mpi");
    assert.equal(launcherOf({}), "slurm");
    assert.equal(launcherOf({ RANK: "0", WORLD_SIZE: "3" }), "torchrun");
    assert.throws(() => read({ ...task, PMIX_RANK: "1", PMIX_NAMESPACE: "prterun-node1-3@1" }), UnsupportedError);
    // In the shell of `srun --pty bash`, which is a step of one task.
    const shell: Values = { ...task, SLURM_PROCID: "0", SLURM_LOCALID: "0", SLURM_STEP_NUM_TASKS: "1" };
    assert.equal(read(shell), undefined);
    assert.throws(() => read({ ...shell, PMIX_RANK: "0", PMIX_NAMESPACE: "prterun-node1-3@1" }), UnsupportedError);
  });

  it("refuses a task of SLURM of which variables are missing", () => {
    const { SLURM_STEP_NODELIST: _, ...noNodes } = task;
    assert.throws(
      () => read(noNodes),
      /SLURM_STEP_NODELIST: expected a list of hosts such as node\[01-04\], got nothing/,
    );
    const { SLURM_STEP_NUM_TASKS: __, ...noSize } = task;
    assert.throws(() => read(noSize), /SLURM_STEP_NUM_TASKS: expected a whole number from 0, got nothing/);
    const { SLURM_PROCID: ___, ...noRank } = task;
    assert.throws(() => read(noRank), /SLURM_PROCID: expected a whole number from 0, got nothing/);
  });
});

describe("enclosingLauncher()", () => {
  const outer = (values: Values): string | undefined => enclosingLauncher((name) => values[name])?.name;

  it("finds what starts this process as one of several", () => {
    for (const [name, values] of [...RANKS, ...RANKS_OF_MPI]) assert.match(outer(values) ?? "", name);
    assert.equal(outer(task), "SLURM's srun");
    assert.equal(outer({ ...task, PMI_RANK: "1", PMI_SIZE: "2" }), "SLURM's srun");
  });

  it("finds none for one process, a batch script, or where it was said", () => {
    assert.equal(outer({}), undefined);
    assert.equal(outer({ RANK: "1", WORLD_SIZE: "2" }), undefined);
    assert.equal(outer({ ...task, SLURM_PROCID: "0", SLURM_STEP_NUM_TASKS: "1" }), undefined);
    assert.equal(outer({ SLURM_PROCID: "0", SLURM_NTASKS: "8", SLURM_JOB_ID: "7" }), undefined);
    for (const FULLYSHARD_LAUNCHER of ["none", "torchrun"]) {
      assert.equal(outer({ ...task, FULLYSHARD_LAUNCHER }), undefined);
    }
  });
});
