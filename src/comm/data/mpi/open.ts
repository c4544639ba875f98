/**
 * Joins the ranks that a launcher of MPI started, on one host or several.
 *
 * @module
 */
import { at } from "../../../at.ts";
import type { Device } from "../../../device/device.ts";
import { ArgumentError, ConfigError, InternalError, LibraryNotFoundError, RendezvousError } from "../../../errors.ts";
import { openPosix } from "../../../ffi/posix.ts";
import { openSockets } from "../../../ffi/sockets.ts";
import { requireSharedMemory } from "../../../runtime/processes.ts";
import { countOf } from "../../../words.ts";
import type { ControlOptions, ControlPlane } from "../../control_plane.ts";
import type { DataPlane } from "../../data_plane.ts";
import { type HostsPlace, joinHosts } from "../../hosts/join.ts";
import { NearControlPlane } from "../../hosts/near.ts";
import { HostsControlPlane } from "../../hosts/plane.ts";
import { ProcessGroup } from "../../process_group.ts";
import { DevicePages } from "../device_pages.ts";
import { openStaging } from "../shm.ts";
import { slotBytesOf, type StagingOptions } from "../sizes.ts";
import { findHosts, type HostRanks } from "./host_ranks.ts";
import { withoutLibrary } from "./library.ts";
import { meet, type MeetingOptions } from "./meeting.ts";
import { Moves } from "./moves.ts";
import { MpiDataPlane } from "./plane.ts";
import { type JoinDeadline, type MpiProcess, openedMpi, openMpiProcess } from "./process.ts";
import { hostsOf } from "./turns.ts";
import { LevelsDataPlane } from "./two_levels.ts";
import { openMpiWithoutLauncher } from "./without_launcher.ts";

/** Options of ranks that MPI joins. */
export interface MpiOptions extends ControlOptions, StagingOptions, MeetingOptions {
  /** This rank and the number of ranks, as the launcher says. */
  readonly rank: number;
  readonly worldSize: number;
  /** The store's place, for ranks that no launcher of MPI started. @default MPI joins them first, as its launcher says */
  readonly hosts: HostsPlace | undefined;
  /** Seconds to wait for a rank that has not started; default 60. */
  readonly joinTimeoutSeconds?: number | undefined;
  /** Directory of the files by which ranks of a host share memory. @default /dev/shm */
  readonly directory?: string | undefined;
}

/**
 * Joins the other ranks that the launcher started.
 *
 * @param device a device whose memory lies in this process
 * @throws {ArgumentError} if the device's memory lies elsewhere
 * @throws {ConfigError} if hosts cannot have equal numbers of ranks, without a launcher of MPI
 * @throws {LibraryNotFoundError} if MPI is not found
 * @throws {FileError} if /dev/shm has no room for it
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
  const { rank, worldSize, joinTimeoutSeconds: seconds = 60, hosts: place } = options;
  const deadline: JoinDeadline = { at: performance.now() + seconds * 1000, seconds };
  const posix = await openPosix();
  if (place !== undefined && worldSize % place.localWorldSize !== 0) {
    const expected =
      `a divisor of WORLD_SIZE (${worldSize}), as hosts have equal numbers of ranks; where they have not, 1 on all`;
    throw new ConfigError([{ path: "LOCAL_WORLD_SIZE", expected, got: String(place.localWorldSize) }]);
  }
  // Ranks that have MPI already meet by it again: their first store may still hold the port that their variables name.
  const hasMpi = openedMpi() !== undefined;
  const joined: Joined = place === undefined || hasMpi
    ? await joinLaunched(hasMpi ? { ...options, port: undefined } : options, deadline)
    : { control: await joinHosts({ ...options, ...place }), token: `${place.token} ${place.port}`, mpi: undefined };
  const { control, token } = joined;
  using kept = new DisposableStack();
  try {
    const hosts = kept.use(await findHosts(control, posix, token, options.directory));
    const { hostOf, sharesCores } = hosts;
    const mpi = joined.mpi ?? await named(worldSize, false, () => openMpiWithoutLauncher(control, hostOf, deadline));
    const numHosts = new Set(hostOf).size;
    mpi.sharesCores = sharesCores;
    mpi.report = (text) => control.report(text);
    mpi.isSilent = () => control.isCutOff || (numHosts > 1 && control.isLate);
    const where = `${countOf(numHosts, "host")}, joined by MPI: ${mpi.library.version}`;
    if (rank === 0) options.report?.(`${countOf(worldSize, "rank")} on ${where}`);
    const world = { mpi, pages: new DevicePages(device, posix), hosts, options, underWay: new Set<Moves>() };
    const { pauses } = device.traits;
    if (pauses !== undefined) kept.use(pauses.use(() => world.underWay.forEach((moves) => moves.progressBegun())));
    return new ProcessGroup(control, openData(control, world, kept.move()));
  } catch (error) {
    control.dispose();
    throw error;
  }
}

/** Ranks that have joined at a store. */
interface Joined {
  readonly control: HostsControlPlane;
  /** A text that only the ranks of this run have. */
  readonly token: string;
  /** Undefined if MPI is not initialized yet. */
  readonly mpi: MpiProcess | undefined;
}

/** Joins ranks that a launcher of MPI started, or that have MPI already: MPI first, which tells them where the store is. */
async function joinLaunched(options: MpiOptions, deadline: JoinDeadline): Promise<Joined> {
  const { rank, worldSize, localWorldSize } = options;
  const mpi = await named(worldSize, true, () => openMpiProcess(deadline, localWorldSize));
  if (mpi.rank !== rank || mpi.size !== worldSize) {
    throw new RendezvousError(
      `The launcher says that this is rank ${rank} of ${worldSize}, but MPI (${mpi.library.version}, ${mpi.library.path}) ` +
        `that it is rank ${mpi.rank} of ${mpi.size}: start the ranks by mpirun or mpiexec of that library, or set ` +
        "FULLYSHARD_MPI_LIBRARY to the launcher's",
    );
  }
  const meeting = await meet(mpi, await openSockets(), options, deadline);
  const control = await joinHosts({ ...options, ...meeting });
  mpi.isSilent = () => control.isCutOff;
  mpi.report = (text) => control.report(text);
  return { mpi, control, token: meeting.token };
}

/** Opens MPI. @throws {LibraryNotFoundError} with what it is needed for */
async function named(worldSize: number, isLaunched: boolean, open: () => Promise<MpiProcess>): Promise<MpiProcess> {
  try {
    return await open();
  } catch (error) {
    throw error instanceof LibraryNotFoundError ? withoutLibrary(error, worldSize, isLaunched) : error;
  }
}

/** State that all groups of a world share. */
interface MpiWorld {
  readonly mpi: MpiProcess;
  readonly pages: DevicePages;
  readonly hosts: HostRanks;
  readonly options: StagingOptions & Pick<ControlOptions, "report">;
  /** The messages of its groups, which move on between kernels. */
  readonly underWay: Set<Moves>;
}

/** Opens the plane of a group. Collective. @param resources disposed with it */
function openData(control: ControlPlane, world: MpiWorld, resources: DisposableStack): DataPlane {
  if (!(control instanceof HostsControlPlane)) throw new InternalError("MPI's ranks meet at a store");
  const { mpi, pages, hosts: { files, hostOf }, options } = world;
  const { device } = pages;
  const moves = new Moves(control, mpi, pages);
  world.underWay.add(moves);
  resources.defer(() => void world.underWay.delete(moves));
  const split = (part: ControlPlane): DataPlane => openData(part, world, new DisposableStack());
  const flat = new MpiDataPlane({ control, device, moves, options, split });
  const order = hostsOf(control.worldRanks, hostOf);
  const own = at(order.hosts, at(order.hostOf, control.rank, "host of rank"), "ranks of host");
  const together = order.hosts.some((ranks) => ranks.length > 1)
    ? resources.use(new NearControlPlane(control, files, own, moves))
    : undefined;
  const slotBytes = slotBytesOf("shm", own.length, options);
  const near = together === undefined || own.length === 1
    ? undefined
    : openStaging(together, { files, pages, slotBytes, options, obstacle: undefined });
  return new LevelsDataPlane({ control, device, moves, order, near, flat, split, resources });
}
