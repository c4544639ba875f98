/**
 * Scripts as users start them: by the launcher alone, without its library, and with a half of its variables.
 *
 * @module
 */
import { type MpiLauncher, onThisHost, runCommand, scriptCommandOf } from "../../tests/support/mpi_world.ts";
import type { ClusterItem, RuntimeName } from "./items.ts";

/** The example that prints a line of its loss. */
const EXAMPLE: URL = new URL("../../examples/minimal.ts", import.meta.url);

/** Runs the example in each way. */
export async function variableItems(launcher: MpiLauncher, runtime: RuntimeName): Promise<readonly ClusterItem[]> {
  const rank = scriptCommandOf(runtime, EXAMPLE, []);
  const name = (what: string): string => `${launcher.name}, ${runtime}: ${what}`;
  const check = (what: string, wrong: boolean, output: string): ClusterItem =>
    wrong ? { name: name(what), status: "fail", reason: output.slice(-600) } : { name: name(what), status: "pass" };

  const whole = await runCommand(onThisHost(launcher, 2, rank));
  const losses = whole.output.split("\n").filter((line) => /^step 60\b.*loss/.test(line));
  const without = await runCommand(onThisHost(launcher, 2, rank), {
    env: { FULLYSHARD_MPI_LIBRARY: "/absent/libmpi.so" },
  });
  const half = await runCommand(rank, { env: { PMI_RANK: "0" } });
  return [
    check("'mpirun -n 2' of the smallest example is one world", whole.code !== 0 || losses.length !== 1, whole.output),
    check(
      "no library of MPI is an error, never worlds of one rank",
      without.code === 0 || !/Cannot open MPI\. It joins ranks/.test(without.output) || /^step /m.test(without.output),
      without.output,
    ),
    check(
      "half of a launcher's variables are an error",
      half.code === 0 || !/PMI_SIZE: expected a whole number/.test(half.output),
      half.output,
    ),
  ];
}
