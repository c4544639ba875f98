/**
 * The end of a process that fails before it has initialized MPI.
 * - MPICH's launchers ignore a process that ends before `MPI_Init`, so the other ranks would wait there for ever. The process therefore
 *   tells its launcher that it is a rank (`pmi.ts`), and at its end that the launcher shall end all ranks.
 * - Open MPI's launchers end all ranks by themselves. The launcher of Open MPI 5 hangs if it ends a rank that is about to connect to
 *   it, so the process waits until the ranks have connected, and ends then.
 *
 * @module
 */
import { sleep } from "../../../runtime/clock.ts";
import { processSource } from "../../../runtime/env.ts";
import { mpiLibraryOf } from "../../../runtime/launchers.ts";
import { onExit } from "../../../runtime/processes.ts";
import { openPmiStream } from "./pmi.ts";

/** Time in which ranks that were started together connect to their launcher. */
const CONNECT_MS = 1500;

let hasBegun = false;

/** From now on MPI itself tells the launcher how this process ends. */
export function mpiBegins(): void {
  hasBegun = true;
}

/** Joins this process to others; if that fails before MPI begins, the launcher ends all ranks when this process ends with an error. */
export async function tellingEarlyEnd<T>(join: () => Promise<T>): Promise<T> {
  try {
    return await join();
  } catch (error) {
    if (!hasBegun) await tell();
    throw error;
  }
}

async function tell(): Promise<void> {
  mpiBegins(); // once is enough
  const launcher = await openPmiStream();
  if (launcher !== undefined) {
    launcher.ask("cmd=init pmi_version=1 pmi_subversion=1");
    // At the exit, as the launcher then kills this process at once. Without these words the launcher did not always see that this process
    // had ended: with ranks on several hosts, and on a busy machine while another rank was in `MPI_Init`.
    onExit((exitCode, printError) => {
      if (exitCode === 0) return;
      printError();
      launcher.ask(`cmd=abort exitcode=${exitCode}`);
    });
  } else if (mpiLibraryOf(processSource) === "openmpi") await sleep(CONNECT_MS);
}
