/**
 * Runs that a cluster's launcher starts: its command line, and a stand-in for the launcher that says how it was called. Real launchers
 * start such runs in `npm run clusters -- --kind launch`.
 *
 * @module
 */
import assert from "node:assert/strict";
import { chmodSync } from "node:fs";
import process from "node:process";
import { test } from "node:test";
import { clusterCommand, shellText } from "../../src/launch/cluster_launcher.ts";
import { planRun } from "../../src/launch/plan.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";
import { startCli } from "./launcher.ts";

const OPEN_MPI_5 = "mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n";
const OPEN_MPI_4 = "mpirun.openmpi (OpenRTE) 4.1.4\n";
const MPICH = "HYDRA build details:\n    Version:                                 5.0.2\n";
const INTEL = "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20260101\n";

/** The command line of two hosts with four ranks each. */
function commandOf(program: string, version: string, hostfile?: string, args: readonly string[] = []): string {
  const rank = { program: "bun", args: ["train.ts", "--name", "a run"] };
  const variables = { FULLYSHARD_TRACE: "t", HF_TOKEN: "s", RANK: "1", OMPI_LIBDIR_LOC: "/lib", PATH: "/bin" };
  return shellText(clusterCommand({ program, hostfile, args }, { numHosts: 2, numRanks: 4 }, rank, version, variables));
}

test("clusterCommand() writes what each launcher takes", () => {
  const rank = "bun train.ts --name 'a run'";
  const handed = "-x FULLYSHARD_TRACE -x HF_TOKEN";
  for (
    const [command, expected] of [
      [
        commandOf("mpirun", OPEN_MPI_5, "hosts"),
        `mpirun -n 8 --map-by ppr:4:node --hostfile hosts --with-ft ulfm ${handed} ${rank}`,
      ],
      [commandOf("/opt/bin/mpirun", OPEN_MPI_4), `/opt/bin/mpirun -n 8 --map-by ppr:4:node ${handed} ${rank}`],
      [commandOf("mpiexec.hydra", MPICH, "hosts"), `mpiexec.hydra -n 8 -ppn 4 -f hosts ${rank}`],
      [commandOf("mpiexec", INTEL, undefined, ["-genv", "A=1"]), `mpiexec -n 8 -ppn 4 -genv A=1 ${rank}`],
      [
        commandOf("srun", "MPI plugin types are...\n\tnone\n\tpmi2\n\tpmix\n"),
        `srun --nodes 2 --ntasks-per-node 4 --mpi=pmix ${rank}`,
      ],
      [commandOf("srun", "\tnone\n\tpmi2\n"), `srun --nodes 2 --ntasks-per-node 4 --mpi=pmi2 ${rank}`],
      [commandOf("srun", "\tnone\n"), `srun --nodes 2 --ntasks-per-node 4 ${rank}`],
    ] as const
  ) {
    assert.equal(command, expected);
  }
  assert.throws(() => commandOf("mpirun", "MPI of my own 1.0\n"), /expected Open MPI's, .*says 'MPI of my own 1\.0'/);
});

test("shellText() quotes what a shell would read otherwise", () => {
  assert.equal(shellText({ program: "a b", args: ["it's", "$HOME", "x=1", ""] }), `'a b' 'it'\\''s' '$HOME' x=1 ''`);
});

test("planRun() takes a cluster's launcher with the flags that have a meaning there", () => {
  const plan = planRun(
    [..."--launcher srun --nnodes 2 --nproc-per-node 4 --trace traces t.ts --launcher x".split(" ")],
    8,
  );
  assert.ok(plan !== "help" && plan.cluster !== undefined);
  assert.deepEqual([plan.numHosts, plan.numRanks, plan.trace?.folder], [2, 4, "traces"]);
  assert.deepEqual(plan.scriptArgs, ["--launcher", "x"]);
  const own = planRun(["--launcher=fullyshard", "t.ts"], 8);
  assert.ok(own !== "help" && own.cluster === undefined);
  for (
    const [text, pattern] of [
      [
        "--launcher torchrun",
        /--launcher: expected fullyshard, or mpirun, mpiexec, srun by name or path, got 'torchrun'/,
      ],
      ["--launcher mpirun --max-restarts 2", /--max-restarts: expected to be left out with --launcher mpirun/],
      ["--launcher mpirun --master-addr a --tee 3", /--master-addr: expected to be left out[^]*--tee: expected/],
      ["--launcher srun --hostfile f", /--hostfile: expected to be left out, as srun takes its job's hosts, got 'f'/],
      [
        "--launcher mpirun --nnodes 1:4",
        /1 problem:\s+--nnodes: expected one number with --launcher mpirun, got '1:4'/,
      ],
      ["--launcher mpirun --trace run.json", /--trace: expected a folder/],
      ["--hostfile f", /--hostfile: expected to be left out, or --launcher mpirun or srun, got it/],
      ["--print-command", /--print-command: expected to be left out/],
    ] as const
  ) {
    assert.throws(() => planRun([...text.split(" "), "t.ts"], 8), pattern);
  }
});

/** A program that says that it is Open MPI's, and how it was called. */
function standIn(folder: TemporaryDirectory, name: string, does: string): string {
  const path = folder.write(
    name,
    `#!/bin/sh\nif [ "$1" = --version ]; then echo 'mpirun (Open MPI) 5.0.11'; exit; fi\n${does}\n`,
  );
  chmodSync(path, 0o755);
  return path;
}

test("fullyshard run --launcher starts the launcher, shows its command line, and ends with its code", async () => {
  using folder = temporaryDirectory();
  const [program, script] = [
    standIn(folder, "mpirun", 'echo "took $*"; echo "in $FULLYSHARD_TRACE"; exit 7'),
    folder.write("t.ts", ""),
  ];
  const flags = ["--launcher", program, "--nproc-per-node", "2", "--trace", folder.file("traces")];
  const { code, stdout, stderr } = await startCli(["run", ...flags, script, "--lr", "1e-3"]).ended;
  assert.equal(code, 7, stderr);
  assert.match(stderr, /^fullyshard: \/\S+\/mpirun -n 2 --map-by ppr:2:node --with-ft ulfm .*t\.ts --lr 1e-3$/m);
  assert.match(stdout, /took -n 2 .* -x FULLYSHARD_TRACE .*t\.ts --lr 1e-3\nin \/\S+\/traces\n/);
  const printed = await startCli(["run", ...flags, "--print-command", script]).ended;
  assert.equal(printed.code, 0, printed.stderr);
  assert.match(printed.stdout, /^\/\S+\/mpirun -n 2 .*t\.ts\n$/);
  const missing = await startCli(["run", "--launcher", folder.file("none/mpirun"), script]).ended;
  assert.equal(missing.code, 2);
  assert.match(missing.stderr, /Cannot run '\S+\/none\/mpirun --version': .*ENOENT.*give its path by --launcher/);
});

test("fullyshard run --launcher hands a signal on to the launcher", async () => {
  using folder = temporaryDirectory();
  const program = standIn(
    folder,
    "mpirun",
    'trap "echo asked to stop; exit 9" USR1\necho began\nwhile :; do sleep 0.1; done',
  );
  const run = startCli(["run", "--launcher", program, folder.write("t.ts", "")]);
  await run.until(/began/);
  process.kill(run.pid, "SIGUSR1");
  const { code, stdout } = await run.ended;
  assert.equal(code, 9);
  assert.match(stdout, /asked to stop/);
});
