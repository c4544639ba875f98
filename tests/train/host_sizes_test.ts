/** What ranks of MPI know of their hosts, which may have unequal numbers of ranks. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { hostSizes } from "../../src/train/host_sizes.ts";
import { mpiLaunchers, NO_MPI, onThisHost, runCommand, scriptCommandOf } from "../support/mpi_world.ts";
import { RUNTIME } from "../support/rank_process.ts";

test("hostSizes() gives ranks of MPI one number where hosts have equal ones, and else one rank a host", () => {
  const sizesOf = (...hosts: readonly (readonly [number, string])[]): ReturnType<typeof hostSizes> =>
    hostSizes({ exchangeText: () => hosts.map((host) => JSON.stringify(host)) }, {
      launcher: "mpi",
      localWorldSize: hosts[0]?.[0] ?? assert.fail(),
    });
  assert.deepEqual(sizesOf([2, "a"], [2, "a"], [2, "b"], [2, "b"]), { localWorldSize: 2 });
  const unequal = { localWorldSize: 1, hasEqualHosts: false };
  assert.deepEqual(sizesOf([1, "a"], [3, "b"], [3, "b"], [3, "b"]), unequal);
  assert.deepEqual(sizesOf([3, "b"], [3, "b"], [3, "b"], [1, "a"]), unequal);
  // As many on each, but numbered in turn.
  assert.deepEqual(sizesOf([2, "a"], [2, "b"], [2, "a"], [2, "b"]), unequal);
});

const [launcher] = mpiLaunchers();
const ONE_REFUSES =
  'if [ "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}" = 1 ]; then export FULLYSHARD_LAUNCHER=another; fi; exec "$@"';

test("launch() ends the ranks that wait in MPI_Init when one of them refuses its variables", {
  skip: launcher === undefined && NO_MPI,
  timeout: 60_000,
}, async () => {
  assert.ok(launcher !== undefined);
  const rank = scriptCommandOf(RUNTIME, new URL("../../examples/minimal.ts", import.meta.url), []);
  const line = onThisHost(launcher, 2, ["sh", "-c", ONE_REFUSES, "sh", ...rank]);
  const { code, output } = await runCommand(line, { timeoutMs: 30_000 });
  assert.notEqual(code, 0);
  assert.match(output, /FULLYSHARD_LAUNCHER: expected torchrun, mpi or slurm, got "another"/);
  assert.doesNotMatch(output, /killed after/);
});
