/**
 * Joins the ranks that a launcher of MPI started, on one host or several.
 *
 * @module
 */
import type { Device } from "../../../device/device.ts";
import { ArgumentError, InternalError, LibraryNotFoundError, RendezvousError } from "../../../errors.ts";
import { openPosix } from "../../../ffi/posix.ts";
import { openSockets } from "../../../ffi/sockets.ts";
import { hostName, requireSharedMemory } from "../../../runtime/processes.ts";
import type { ControlOptions, ControlPlane } from "../../control_plane.ts";
import type { DataPlane } from "../../data_plane.ts";
import { joinHosts } from "../../hosts/join.ts";
import { HostsControlPlane } from "../../hosts/plane.ts";
import { ProcessGroup } from "../../process_group.ts";
import { DevicePages } from "../device_pages.ts";
import type { StagingOptions } from "../sizes.ts";
import { withoutLibrary } from "./library.ts";
import { meet, type MeetingOptions } from "./meeting.ts";
import { Moves } from "./moves.ts";
import { MpiDataPlane } from "./plane.ts";
import { type JoinDeadline, type MpiProcess, openMpiProcess } from "./process.ts";

/** Options of ranks that MPI joins. */
export interface MpiOptions extends ControlOptions, StagingOptions, MeetingOptions {
  /** This rank and the number of ranks, as the launcher says. */
  readonly rank: number;
  readonly worldSize: number;
  /** Seconds to wait for a rank that has not started; default 60. */
  readonly joinTimeoutSeconds?: number | undefined;
}

/**
 * Joins the other ranks that the launcher started.
 *
 * @param device a device whose memory lies in this process
 * @throws {ArgumentError} if the device's memory lies elsewhere
 * @throws {LibraryNotFoundError} if MPI is not found
 * @throws {RendezvousError} if MPI knows other ranks than the launcher, or a rank does not come in time
 * @example
 * ```ts ignore
 * using group = await openMpi(device, { rank: 0, worldSize: 4, localWorldSize: 4 }); // mpirun -n 4 …
 * ```
 */
export async function openMpi(device: Device, options: MpiOptions): Promise<ProcessGroup> {
  if (device.traits.hostBase === undefined) {
    throw new ArgumentError(`Backend 'mpi' moves memory of the host, but the device is ${device.name}: use 'nccl'`);
  }
  requireSharedMemory();
  const { rank, worldSize, joinTimeoutSeconds: seconds = 60 } = options;
  const deadline: JoinDeadline = { at: performance.now() + seconds * 1000, seconds };
  const mpi = await initialize(deadline, worldSize);
  if (mpi.rank !== rank || mpi.size !== worldSize) {
    throw new RendezvousError(
      `The launcher says that this is rank ${rank} of ${worldSize}, but MPI (${mpi.library.version}, ${mpi.library.path}) ` +
        `that it is rank ${mpi.rank} of ${mpi.size}: start the ranks by mpirun or mpiexec of that library, or set ` +
        "FULLYSHARD_MPI_LIBRARY to the launcher's",
    );
  }
  const [posix, sockets] = [await openPosix(), await openSockets()];
  const meeting = await meet(mpi, sockets, options, deadline);
  const control = await joinHosts({ ...options, ...meeting });
  try {
    requireHostByHost(control, options);
    if (rank === 0) options.report?.(`${worldSize} ranks are joined by MPI: ${mpi.library.version}`);
    return new ProcessGroup(control, openData(control, device, mpi, new DevicePages(device, posix), options));
  } catch (error) {
    control.dispose();
    throw error;
  }
}

/** Checks that ranks are numbered host by host, as meshes over hosts take them; tells which ranks do not know their host's name. */
function requireHostByHost(control: ControlPlane, { localWorldSize, report }: MpiOptions): void {
  const names = control.exchange(new TextEncoder().encode(hostName() ?? "")).map((name) =>
    new TextDecoder().decode(name)
  );
  const nameless = names.flatMap((name, rank) => name === "" ? [rank] : []);
  if (nameless.length > 0) {
    // Only Deno without --allow-sys=hostname hides a host's name.
    if (control.rank === 0) {
      report?.(
        `The order of ranks over hosts was not checked: rank ${
          nameless.join(", ")
        } may not read the name of its host ` +
          "(deno run --allow-sys=hostname)",
      );
    }
    return;
  }
  for (const [rank, name] of names.entries()) {
    const first = rank - rank % localWorldSize;
    if (name === names[first]) continue;
    throw control.failure(
      `rank ${rank} is on host '${name}', but rank ${first} on host '${
        names[first]
      }', with ${localWorldSize} ranks on each ` +
        "host: number ranks host by host, such as by 'mpirun --map-by slot' or 'mpiexec -ppn'",
    );
  }
}

async function initialize(deadline: JoinDeadline, worldSize: number): Promise<MpiProcess> {
  try {
    return await openMpiProcess(deadline);
  } catch (error) {
    throw error instanceof LibraryNotFoundError ? withoutLibrary(error, worldSize) : error;
  }
}

function openData(
  control: ControlPlane,
  device: Device,
  mpi: MpiProcess,
  pages: DevicePages,
  options: StagingOptions,
): DataPlane {
  if (!(control instanceof HostsControlPlane)) throw new InternalError("MPI's ranks meet at a store");
  const moves = new Moves(control, mpi, pages);
  const split = (part: ControlPlane): DataPlane => openData(part, device, mpi, pages, options);
  return new MpiDataPlane({ control, device, moves, options, split });
}
