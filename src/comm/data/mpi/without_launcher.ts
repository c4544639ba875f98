/**
 * MPI among ranks that no launcher of MPI has started, but torchrun's variables describe: `fullyshard run --nnodes`, torchrun itself, a
 * Kubernetes job. They have joined at a store. Each does for its library what MPICH's launcher would (`pmi_server.ts`).
 * 1. A Worker calls `MPI_Init`, which blocks while it asks for the other ranks.
 * 2. This thread answers, and exchanges what the libraries put over the control plane: so it hears of a rank that dies meanwhile, by name.
 *
 * MPICH and its kin ask in this way; Open MPI's library asks for PMIx, which only its launcher speaks.
 *
 * @module
 */
import { at } from "../../../at.ts";
import { LibraryNotFoundError, RendezvousError } from "../../../errors.ts";
import { MPI } from "../../../ffi/bindings/mpi.ts";
import { openPosix, type Posix } from "../../../ffi/posix.ts";
import { openSockets } from "../../../ffi/sockets.ts";
import { runInBackground } from "../../../runtime/background_worker.ts";
import { sleep } from "../../../runtime/clock.ts";
import type { HostsControlPlane } from "../../hosts/plane.ts";
import { exchangeOutcomes } from "../../together.ts";
import { type OpenMpiLibrary, openMpiLibrary } from "./library.ts";
import { type JoinDeadline, keepMpi, MpiProcess, requireFresh } from "./process.ts";
import { PmiServer } from "./pmi_server.ts";
import { requireRoom } from "./room.ts";

/** Bytes of chance in the name of a run. */
const RUN_BYTES = 12;
/** Variables of a launcher that started an ancestor of this process. A library would take that launcher for its own. */
const FOREIGN = ["PMI_FD", "PMI_RANK", "PMI_SIZE", "PMIX_NAMESPACE", "PMIX_RANK"] as const;
/** What is awaited, in words that follow "waited for". */
const STAGE = "MPI to begin";
/** Pause between two looks at what the library asks. */
const LOOK_MS = 1;

/**
 * Initializes MPI. Collective.
 *
 * @param hostOf the host of each rank
 * @throws {LibraryNotFoundError} if the library is Open MPI's, or there is none
 * @throws {CollectiveError} if it is so for another rank, or ranks have several libraries
 * @throws {RendezvousError} at the deadline
 */
export async function openMpiWithoutLauncher(
  control: HostsControlPlane,
  hostOf: readonly number[],
  deadline: JoinDeadline,
): Promise<MpiProcess> {
  const { rank } = control;
  const [posix, sockets] = [await openPosix(), await openSockets()];
  const [prepared] = await Promise.allSettled([
    prepare(posix, hostOf.filter((host) => host === hostOf[rank]).length),
  ]);
  const { value: library, notes } = exchangeOutcomes(control, prepared, ({ version }) => version);
  const other = notes.findIndex((version) => version !== notes[0]);
  if (other > 0) {
    throw control.failure(
      `rank 0 has ${notes[0]}, but rank ${other} ${notes[other]}: give all ranks one library of MPI`,
    );
  }
  const names = control.exchange(crypto.getRandomValues(new Uint8Array(RUN_BYTES)));
  const server = new PmiServer(
    sockets,
    { run: at(names, 0, "name of run").toHex(), rank, size: hostOf.length },
    (own) => control.exchange(own),
  );
  for (const name of FOREIGN) posix.clearVariable(name);
  const variables = Object.entries(server.variables);
  for (const [name, value] of variables) posix.setVariable(name, value);
  const worker = runInBackground(new URL("./init_worker.ts", import.meta.url), undefined);
  let isDone = false;
  const done = worker.ended.finally(() => isDone = true);
  done.catch(() => {}); // awaited below
  try {
    while (!isDone) {
      if (performance.now() > deadline.at) {
        throw new RendezvousError(`Rank ${rank}: MPI (${library.version}) did not begin within ${deadline.seconds} s`);
      }
      control.requireAll(STAGE);
      server.serve();
      await sleep(LOOK_MS);
    }
    await done;
  } finally {
    for (const file of filesOf(posix)) posix.unlink(file);
  }
  // Not if it fails: a library that loses its server ends the process, before this rank could say why.
  server[Symbol.dispose]();
  for (const [name] of variables) posix.clearVariable(name);
  const mpi = new MpiProcess(library, posix.libc.symbols, "none");
  await mpi.duplicate(deadline, () => control.requireAll(STAGE));
  keepMpi(mpi);
  return mpi;
}

/** Opens a library that can be initialized without a launcher. @param numLocal ranks of this host */
async function prepare(posix: Posix, numLocal: number): Promise<OpenMpiLibrary> {
  const library = await openMpiLibrary(undefined, "mpich");
  if (library.abi === "openmpi") {
    const reason = "it is Open MPI's, whose ranks need its launcher";
    throw new LibraryNotFoundError("MPI", [{ path: library.path, reason }], MPI.remedy);
  }
  requireFresh(library);
  requireRoom(posix, library, numLocal);
  return library;
}

/**
 * MPICH's files in shared memory that this process maps. As each rank counts as a host of its own for the library, no other process
 * opens them; the library would leave them behind in a process that is killed, or ends without `MPI_Finalize`.
 */
function filesOf(posix: Posix): ReadonlySet<string> {
  const maps = posix.readFile("/proc/self/maps");
  if (maps === undefined) return new Set();
  return new Set([...new TextDecoder().decode(maps).matchAll(/\/dev\/shm\/mpich_shm_\S+$/gm)].map(([file]) => file));
}
