/**
 * Scripts as users start them: by the launcher alone, without its library, and with a half of its variables.
 *
 * @module
 */
import { fileURLToPath } from "node:url";
import { type MpiLauncher, onThisHost, runCommand, scriptCommandOf } from "../../tests/support/mpi_world.ts";
import type { ClusterItem, RuntimeName } from "./items.ts";

/** The example that prints a line of its loss. */
const EXAMPLE: URL = new URL("../../examples/minimal.ts", import.meta.url);

/** The command line. */
const CLI: URL = new URL("../../src/cli/main.ts", import.meta.url);

/** Has rank 1 refuse its variables. */
const ONE_REFUSES =
  'if [ "${PMI_RANK:-$OMPI_COMM_WORLD_RANK}" = 1 ]; then export FULLYSHARD_LAUNCHER=another; fi; exec "$@"';

/** Runs the example in each way. */
export async function variableItems(launcher: MpiLauncher, runtime: RuntimeName): Promise<readonly ClusterItem[]> {
  const rank = scriptCommandOf(runtime, EXAMPLE, []);
  const name = (what: string): string => `${launcher.name}, ${runtime}: ${what}`;
  const check = (what: string, wrong: boolean, output: string): ClusterItem =>
    wrong ? { name: name(what), status: "fail", reason: output.slice(-600) } : { name: name(what), status: "pass" };

  const isLoss = (output: string): boolean =>
    output.split("\n").filter((line) => /^step 60\b.*loss/.test(line)).length === 1;
  const whole = await runCommand(onThisHost(launcher, 2, rank));
  const args = ["--launcher", launcher.program, `--launcher-args=${launcher.flags.join(" ")}`, "--nproc-per-node", "2"];
  const ours = await runCommand(scriptCommandOf(runtime, CLI, ["run", ...args, fileURLToPath(EXAMPLE)]));
  const without = await runCommand(onThisHost(launcher, 2, rank), {
    env: { FULLYSHARD_MPI_LIBRARY: "/absent/libmpi.so" },
  });
  const begun = performance.now();
  const refused = await runCommand(onThisHost(launcher, 2, ["sh", "-c", ONE_REFUSES, "sh", ...rank]), {
    timeoutMs: 60_000,
  });
  const seconds = (performance.now() - begun) / 1000;
  const half = await runCommand(rank, { env: { PMI_RANK: "0" } });
  return [
    check(
      "'mpirun -n 2' of the smallest example is one world",
      whole.code !== 0 || !isLoss(whole.output),
      whole.output,
    ),
    check(
      "'fullyshard run --launcher' starts the same world, and shows the command line",
      ours.code !== 0 || !isLoss(ours.output) || !/^fullyshard: .* -n 2 .*minimal\.ts$/m.test(ours.output),
      ours.output,
    ),
    check(
      "no library of MPI is an error, never worlds of one rank",
      without.code === 0 || !/Cannot open MPI\. It joins ranks/.test(without.output) || /^step /m.test(without.output),
      without.output,
    ),
    check(
      "a rank that refuses its variables before MPI begins ends all within seconds",
      refused.code === 0 || seconds > 15 || !/FULLYSHARD_LAUNCHER: expected torchrun/.test(refused.output),
      `${seconds.toFixed(1)} s: ${refused.output}`,
    ),
    check(
      "half of a launcher's variables are an error",
      half.code === 0 || !/PMI_SIZE: expected a whole number/.test(half.output),
      half.output,
    ),
  ];
}
