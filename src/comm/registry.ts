/**
 * The list of backends, each a control plane and a data plane, and the function that opens a group with one. A backend that
 * was named is opened or refused, never replaced. `auto` follows the launch environment:
 * - no environment: a world of one rank, by `loopback`
 * - several ranks of a host: `shm`, or `nccl` between cards
 * - ranks that a launcher of MPI started, and ranks of several hosts without cards: `mpi`
 * - several hosts with cards: `nccl`, whose ranks meet at a store
 *
 * @module
 */
import { type KnownKeys, requireKnownKeys } from "../config/known_keys.ts";
import { type Device, requireDevice } from "../device/device.ts";
import { ArgumentError, ConfigError } from "../errors.ts";
import { openPosix } from "../ffi/posix.ts";
import { type Environment, processEnvironment } from "../runtime/env.ts";
import { type RankEnvironment, readRankEnvironment } from "../runtime/rank_environment.ts";
import { failRendezvousFor } from "./control/shm_join.ts";
import type { LoopbackWorld } from "./control/workers.ts";
import { createLoopbackWorld, openLoopback } from "./data/loopback.ts";
import { tellingEarlyEnd } from "./data/mpi/early_end.ts";
import { openLevelsMemory } from "./data/mpi/levels_memory.ts";
import { openNcclMemory } from "./data/nccl/memory.ts";
import type { OpenPlaneMemory } from "./data/plane_memory.ts";
import { openCopiedMemory, openMappedMemory } from "./data/staged_memory.ts";
import { openShm, type ShmOptions } from "./data/shm.ts";
import type { HostsPlace } from "./hosts/join.ts";
import type { ProcessGroup } from "./process_group.ts";

/** Names of backends. */
export const BACKENDS = ["loopback", "shm", "mpi", "nccl"] as const;
/** Name of a backend. */
export type Backend = typeof BACKENDS[number];

/** Options of {@link openProcessGroup}; the environment decides what is left out. */
export interface ProcessGroupOptions extends Partial<ShmOptions> {
  /** The device that the group's arrays lie on. */
  readonly device: Device;
  /** Default `auto`: `shm` or on a card `nccl` if the environment says that there are several ranks, else `loopback`. */
  readonly backend?: "auto" | Backend | undefined;
  /** World of a `loopback` with several ranks, which this Worker was given. */
  readonly world?: LoopbackWorld | undefined;
  /** Meeting point of the ranks of several hosts, for `nccl` and `mpi`. @default the environment's, if it names several hosts */
  readonly hosts?: HostsPlace | undefined;
}

/** Names of the options of {@link openProcessGroup}. */
export const GROUP_OPTIONS: KnownKeys<ProcessGroupOptions> = {
  ...{ device: true, backend: true, world: true, hosts: true, rank: true, worldSize: true, run: true, directory: true },
  ...{ joinTimeoutSeconds: true, timeoutSeconds: true, reportSeconds: true, report: true, onStop: true },
  ...{ mapping: true, stagingBytes: true, chunkBytes: true },
};

/** Options with rank, world size and launch environment resolved. */
type Request = ProcessGroupOptions & Omit<ShmOptions, "run"> & { readonly launch: RankEnvironment | undefined };

const OPENERS: Readonly<Record<Backend, (request: Request) => ProcessGroup | Promise<ProcessGroup>>> = {
  loopback(request) {
    const { device, rank, worldSize } = request;
    if (request.world === undefined && worldSize > 1) {
      throw new ArgumentError(
        `Backend 'loopback' joins Workers of one process: give 'world' for ${worldSize} ranks, or use 'shm'`,
      );
    }
    return openLoopback(request.world ?? createLoopbackWorld(1), rank, device, request);
  },
  shm: (request) => openShm(request.device, inMemory(request)),
  async mpi(request) {
    const { openMpi } = await import("./data/mpi/open.ts");
    const { launch, worldSize } = request;
    const { localWorldSize = worldSize, masterAddr: address, masterPort: port, launcher } = launch ?? {};
    const hosts = request.hosts ?? (launcher === "torchrun" ? hostsOf(request) : undefined);
    return await openMpi(request.device, { ...inMemory(request), localWorldSize, address, port, hosts });
  },
  async nccl(request) {
    const { openNccl } = await import("./data/nccl/open.ts");
    const mayStage = request.backend !== "nccl";
    return await openNccl(request.device, { ...inMemory(request), hosts: request.hosts ?? hostsOf(request), mayStage });
  },
};

const PLANE_MEMORIES: Readonly<Record<Backend, OpenPlaneMemory>> = {
  loopback: openCopiedMemory,
  shm: openMappedMemory,
  mpi: openLevelsMemory,
  nccl: openNcclMemory,
};

/** Allocates the memory of a backend's plane, for a dry run. */
export function openPlaneMemory(backend: Backend, ...args: Parameters<OpenPlaneMemory>): ReturnType<OpenPlaneMemory> {
  return PLANE_MEMORIES[backend](...args);
}

/** Adds the name of the run and the directory by which processes of a host find each other's memory. */
function inMemory<R extends Pick<Request, "launch" | "run" | "directory">>(request: R): R & Pick<ShmOptions, "run"> {
  const environment = processEnvironment();
  return {
    ...request,
    run: request.run ?? runOf(request, environment),
    directory: request.directory ?? environment.text("FULLYSHARD_SHM_DIRECTORY"),
  };
}

/** Options that say if there are several hosts. */
type HostsRequest = Pick<Request, "launch" | "worldSize" | "rank" | "report">;

/** Meeting point of the ranks of several hosts; undefined if the environment names one host only. */
function hostsOf({ launch, worldSize, rank, report }: HostsRequest): HostsPlace | undefined {
  if (launch === undefined || launch.localWorldSize >= worldSize) return undefined;
  const { localWorldSize, masterAddr: address, masterPort: port } = launch;
  if (address === undefined || port === undefined) {
    const expected =
      `to be set, as LOCAL_WORLD_SIZE is ${localWorldSize} of ${worldSize}: rank 0's host and a free port there`;
    const missing = address === undefined ? "MASTER_ADDR" : "MASTER_PORT";
    throw new ConfigError([{ path: missing, expected, got: "nothing" }]);
  }
  const environment = processEnvironment();
  const token = environment.text("FULLYSHARD_TOKEN");
  if (token !== undefined) return { address, port, localWorldSize, token };
  if (environment.integer("FULLYSHARD_RDZV_INSECURE") !== 1) {
    const expected = `a secret that all ranks of the run share and nobody else knows, as LOCAL_WORLD_SIZE is ` +
      `${localWorldSize} of ${worldSize}; FULLYSHARD_RDZV_INSECURE=1 lets hosts meet without one`;
    throw new ConfigError([{ path: "FULLYSHARD_TOKEN", expected, got: "nothing" }]);
  }
  if (rank === 0) {
    report?.(
      `Any process that reaches port ${port} of this host may join this run, as it has no FULLYSHARD_TOKEN (--rdzv-insecure)`,
    );
  }
  return { address, port, localWorldSize, token: "" };
}

/** Backend of `auto` for a world of ranks that have such a device. @param launch given where a launcher started this process */
export function backendOf(
  { traits }: Pick<Device, "traits">,
  worldSize: number,
  launch?: Pick<RankEnvironment, "launcher" | "localWorldSize">,
): Backend {
  if (worldSize === 1) return "loopback";
  const isOfMpi = launch !== undefined && (launch.launcher === "mpi" || launch.localWorldSize < worldSize);
  return traits.backend === "shm" && isOfMpi ? "mpi" : traits.backend;
}

/**
 * Opens the group of all ranks of this process's world.
 *
 * @param options the device, and settings that replace the environment's
 * @throws {ArgumentError} if an option is none of these
 * @throws {ConfigError} if the launch environment is incomplete or contradicts itself
 * @throws {RendezvousError} if a rank does not start in time, is started twice, or disagrees about the world
 * @example
 * ```ts ignore
 * using group = await openProcessGroup({ device }); // RANK=1 WORLD_SIZE=2 bun run train.ts
 * ```
 */
export function openProcessGroup(options: ProcessGroupOptions): Promise<ProcessGroup> {
  return tellingEarlyEnd(() => openGroup(options));
}

async function openGroup(options: ProcessGroupOptions): Promise<ProcessGroup> {
  requireKnownKeys("open a process group", options, GROUP_OPTIONS);
  requireDevice("open a process group", options.device);
  const { backend = "auto", world } = options;
  // Explicit ranks ignore an environment, which may be meant for others.
  const isExplicit = world !== undefined || (options.rank !== undefined && options.worldSize !== undefined);
  const launch = isExplicit ? undefined : readRankEnvironment();
  const worldSize = world?.size ?? options.worldSize ?? launch?.worldSize ?? 1;
  const rank = options.rank ?? launch?.rank ?? 0;
  const automatic = world !== undefined ? "loopback" : backendOf(options.device, worldSize, launch);
  const open = OPENERS[backend === "auto" ? automatic : backend];
  if (open === undefined) {
    throw new ArgumentError(`No backend is called '${backend}': there are auto, ${BACKENDS.join(", ")}`);
  }
  const timeoutSeconds = options.timeoutSeconds ?? processEnvironment().seconds("FULLYSHARD_TIMEOUT_SECONDS");
  return await open({ ...options, rank, worldSize, launch, timeoutSeconds });
}

/** Identity of a run: by default, a user may have one run at a time on a host. */
function runOf({ launch }: Pick<Request, "launch">, environment: Environment): string {
  const address = launch?.masterAddr ?? environment.text("MASTER_ADDR") ?? "127.0.0.1";
  const port = launch?.masterPort ?? environment.integer("MASTER_PORT") ?? 29500;
  const id = launch?.runId ?? environment.text("FULLYSHARD_RUN_ID");
  return `${address}:${port}${id === undefined ? "" : `/${id}`}`;
}

/**
 * Tells ranks that wait for this environment's rank to join that it never will. Called by the process that takes the place
 * of a rank which has ended; without effect if that rank had joined.
 *
 * @param reason the end of the rank, after "Rank 1 gave up joining: "
 * @param over ends the attempt where no rank waits
 */
export async function neverJoins(reason: string, over: AbortSignal): Promise<void> {
  const launch = readRankEnvironment();
  if (launch === undefined) return;
  const { rank, worldSize } = launch;
  const hosts = hostsOf({ launch, worldSize, rank });
  if (hosts !== undefined) {
    const { giveUpHosts } = await import("./hosts/join.ts");
    return await giveUpHosts({ ...hosts, rank, worldSize }, reason, over);
  }
  await failRendezvousFor(await openPosix(), inMemory({ launch, rank, worldSize }), reason, over);
}
