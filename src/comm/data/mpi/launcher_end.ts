/**
 * The end of a launcher that waits for ranks of a host that cannot be reached: none ends by itself. MPICH's and Intel MPI's end by
 * SIGTERM. Open MPI's does not, so it is killed, after the ranks of its host have said what there is to say.
 *
 * @module
 */
import { SIGNALS } from "../../../ffi/bindings/libc.ts";
import type { MpiAbi } from "../../../ffi/bindings/mpi.ts";
import { ancestors } from "../../../runtime/ancestors.ts";

/** Programs of launchers; not those of a workload manager, which ends its jobs itself. */
const LAUNCHER = /\/(mpiexec(\.hydra)?|mpirun|prterun|orterun)$/;

/** Ends the launcher, if it runs on this host, with a line that says so. @param kill sends a signal to a process */
export function endLauncher(
  abi: MpiAbi,
  kill: (pid: number, signal: number) => void,
  report: (text: string) => void,
): void {
  const launcher = ancestors().find(({ program }) => LAUNCHER.test(program));
  if (launcher === undefined) return;
  const signal = abi === "openmpi" ? "SIGKILL" : "SIGTERM";
  report(
    `Ending ${launcher.program} (process ${launcher.pid}) by ${signal}: it would wait for a host that cannot be reached`,
  );
  kill(launcher.pid, SIGNALS[signal]);
}
