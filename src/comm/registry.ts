/**
 * The list of transports, and the door to a process group. What was named explicitly is opened or refused, never
 * replaced; `auto` follows the launch environment: none is a world of one, several ranks on a host share memory.
 *
 * @module
 */
import type { Device } from "../device/device.ts";
import { ArgumentError, RendezvousError } from "../errors.ts";
import { processEnvironment, readRankEnvironment } from "../runtime/env.ts";
import type { Environment, RankEnvironment } from "../runtime/env.ts";
import { ProcessGroup } from "./process_group.ts";
import type { Transport } from "./transport.ts";
import { createLoopbackWorld, openLoopback } from "./transports/loopback.ts";
import type { LoopbackWorld } from "./transports/loopback.ts";
import { openShm } from "./transports/shm.ts";
import type { TransportOptions } from "./transports/world.ts";

/** Names of transports. */
export const TRANSPORTS = ["loopback", "shm"] as const;
/** Name of a transport. */
export type TransportName = typeof TRANSPORTS[number];

/** What {@link openProcessGroup} needs to know. */
export interface ProcessGroupOptions extends TransportOptions {
  /** The device that the group's arrays lie on. */
  readonly device: Device;
  /** Default `auto`: `shm` if the environment says that there are several ranks, else `loopback`. */
  readonly transport?: "auto" | TransportName;
  /** Default from the environment (`RANK`), else 0. */
  readonly rank?: number;
  /** Default from the environment (`WORLD_SIZE`), else 1. */
  readonly worldSize?: number;
  /** For `loopback` with several ranks: the world that this Worker was given. */
  readonly world?: LoopbackWorld;
  /** What the ranks of this run have in common; default from MASTER_ADDR, MASTER_PORT and FULLYSHARD_RUN_ID. */
  readonly run?: string;
  /** For `shm`: where segments are made; default FULLYSHARD_SHM_DIRECTORY, else `/dev/shm`. */
  readonly shmDirectory?: string;
  /** For `shm`: staging bytes of all ranks together; default 2 MiB for each pair of ranks, at most 64 MiB. */
  readonly apertureBytes?: number;
  /** For `shm`: seconds to wait for a rank that has not started; default 60. */
  readonly joinTimeoutSeconds?: number;
  /** For `shm`: `copy` keeps segments out of the device's memory; default `auto`. */
  readonly mapping?: "auto" | "copy";
}

/** What a transport is opened with: options, and who this rank is. */
interface Request {
  readonly options: ProcessGroupOptions;
  readonly rank: number;
  readonly worldSize: number;
  readonly environment: Environment;
  readonly launch: RankEnvironment | undefined;
  readonly timeoutSeconds: number | undefined;
}

const OPENERS: Readonly<Record<TransportName, (request: Request) => Transport | Promise<Transport>>> = {
  loopback({ options, rank, worldSize, timeoutSeconds }) {
    if (options.world === undefined && worldSize > 1) {
      throw new ArgumentError(
        `Transport 'loopback' joins Workers of one process: give 'world' for ${worldSize} ranks, or use 'shm'`,
      );
    }
    const world = options.world ?? createLoopbackWorld(1);
    return openLoopback(world, rank, options.device, { ...options, ...seconds(timeoutSeconds) });
  },
  shm({ options, rank, worldSize, environment, launch, timeoutSeconds }) {
    if (launch !== undefined && launch.localWorldSize < worldSize) {
      throw new RendezvousError(
        `Transport 'shm' joins ranks of one host, but LOCAL_WORLD_SIZE is ${launch.localWorldSize} of ${worldSize}`,
      );
    }
    const directory = options.shmDirectory ?? environment.text("FULLYSHARD_SHM_DIRECTORY");
    const { report, reportSeconds, chunkBytes, apertureBytes, joinTimeoutSeconds, mapping } = options;
    return openShm(options.device, {
      rank,
      worldSize,
      run: options.run ?? runOf(environment, launch),
      ...(directory === undefined ? {} : { directory }),
      ...seconds(timeoutSeconds),
      ...(report === undefined ? {} : { report }),
      ...(reportSeconds === undefined ? {} : { reportSeconds }),
      ...(chunkBytes === undefined ? {} : { chunkBytes }),
      ...(apertureBytes === undefined ? {} : { apertureBytes }),
      ...(joinTimeoutSeconds === undefined ? {} : { joinTimeoutSeconds }),
      ...(mapping === undefined ? {} : { mapping }),
    });
  },
};

/**
 * Joins the ranks that this process belongs to.
 *
 * @param options the device, and whatever should not be as the environment says
 * @throws {ConfigError} if the launch environment is incomplete or contradicts itself
 * @throws {RendezvousError} if a rank does not start in time, is started twice, or disagrees about the world
 * @example
 * ```ts ignore
 * using group = await openProcessGroup({ device }); // RANK=1 WORLD_SIZE=2 bun run train.ts
 * ```
 */
export async function openProcessGroup(options: ProcessGroupOptions): Promise<ProcessGroup> {
  const environment = processEnvironment();
  // Explicit ranks need no environment, and are not confused by one that was meant for others.
  const isExplicit = options.world !== undefined || (options.rank !== undefined && options.worldSize !== undefined);
  const launch = isExplicit ? undefined : readRankEnvironment();
  const worldSize = options.world?.size ?? options.worldSize ?? launch?.worldSize ?? 1;
  const rank = options.rank ?? launch?.rank ?? 0;
  const { transport = "auto" } = options;
  const automatic = worldSize === 1 || options.world !== undefined ? "loopback" : "shm";
  const open = OPENERS[transport === "auto" ? automatic : transport];
  if (open === undefined) {
    throw new ArgumentError(`No transport is called '${transport}': there are auto, ${TRANSPORTS.join(", ")}`);
  }
  const timeoutSeconds = options.timeoutSeconds ?? environment.seconds("FULLYSHARD_TIMEOUT_SECONDS");
  return new ProcessGroup(await open({ options, rank, worldSize, environment, launch, timeoutSeconds }));
}

/** A run's identity: by default one run at a time and user on a host. */
function runOf(environment: Environment, launch: RankEnvironment | undefined): string {
  const address = launch?.masterAddr ?? environment.text("MASTER_ADDR") ?? "127.0.0.1";
  const port = launch?.masterPort ?? environment.whole("MASTER_PORT") ?? 29500;
  const id = environment.text("FULLYSHARD_RUN_ID");
  return `${address}:${port}${id === undefined ? "" : `/${id}`}`;
}

function seconds(timeoutSeconds: number | undefined): { readonly timeoutSeconds?: number } {
  return timeoutSeconds === undefined ? {} : { timeoutSeconds };
}
