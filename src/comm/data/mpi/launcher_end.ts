/**
 * The end of a launcher that waits for ranks of a host that cannot be reached, or is stopped: none ends by itself. Open MPI's
 * ignores SIGTERM, and MPICH's ends by it or hangs, so they are killed, after the ranks of their host have said what there is to say.
 *
 * @module
 */
import { SIGNALS } from "../../../ffi/bindings/libc.ts";
import { ancestors } from "../../../runtime/ancestors.ts";
import { blockFor } from "../../../runtime/clock.ts";

/** Programs of launchers; not those of a workload manager, which ends its jobs itself. */
const LAUNCHER = /\/(mpiexec(\.hydra)?|mpirun|prterun|orterun)$/;

/** Time in which the launcher passes that line on. */
const FORWARD_MS = 200;

/** Ends the launcher, if it runs on this host, with a line that says so. @param kill sends a signal to a process */
export function endLauncher(kill: (pid: number, signal: number) => void, report: (text: string) => void): void {
  const launcher = ancestors().find(({ program }) => LAUNCHER.test(program));
  if (launcher === undefined) return;
  report(
    `Killing ${launcher.program} (process ${launcher.pid}), which would wait for a host that cannot be reached or does not answer`,
  );
  blockFor(FORWARD_MS);
  kill(launcher.pid, SIGNALS.SIGKILL);
}
