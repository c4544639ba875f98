/**
 * Runs a function as the ranks of a world: Workers of this process (`loopback`, others by {@link WorldOptions.workers}) or
 * processes (with a card each `nccl`), under this runtime, the other one, or both in one world. What it takes and gives is
 * plain data.
 *
 * @module
 */
import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { createLoopbackWorld } from "../../src/comm/data/loopback.ts";
import type { ShmOptions } from "../../src/comm/data/shm.ts";
import type { ProcessGroup } from "../../src/comm/process_group.ts";
import type { Backend } from "../../src/comm/registry.ts";
import type { CommDevice } from "./comm_device.ts";
import { runPooled } from "./rank_pool.ts";
import { type RankProcess, RUNTIME, startRank } from "./rank_process.ts";

/** The argument of a rank's function. */
export interface WorldRank {
  readonly rank: number;
  readonly size: number;
  readonly device: CommDevice;
  /** A group of all ranks. If the function throws, it is aborted with the error. */
  readonly group: ProcessGroup;
  /** Opens a group of all ranks in a world of its own; which one is counted by calls. See {@link WorldOptions.groups}. */
  open(): Promise<ProcessGroup>;
  /** Tells the test something at once. */
  say(text: string): void;
}

/** A function that ranks run. */
export type RankFunction<D, R> = (rank: WorldRank, data: D) => R | Promise<R>;

/** Settings of the ranks' planes. */
export type PlaneOptions = Partial<Omit<ShmOptions, "rank" | "report">> & {
  /** Ranks on each host: ranks of `nccl` meet as if they were on several hosts. */
  readonly ranksPerHost?: number;
};

/** Options of a world. */
export interface WorldOptions<D> {
  /** The backend that joins the ranks. @default loopback, which {@link world} runs as Workers */
  readonly over?: Backend;
  /** True if ranks are Workers, which receive a world of `createLoopbackWorld()`. @default true for loopback */
  readonly workers?: boolean;
  /** Variables of the ranks of `nccl`: the doubles of NVIDIA's libraries. */
  readonly variables?: Readonly<Record<string, string>>;
  /** Runtimes of ranks that are processes, in turn. @default this one */
  readonly runtimes?: readonly ("bun" | "deno")[];
  readonly planes?: PlaneOptions | ((rank: number) => PlaneOptions);
  /** Groups that ranks may open themselves. @default 0 */
  readonly groups?: number;
  readonly memoryBytes?: number;
  /** Run by each rank before it joins. */
  readonly prepare?: (place: { readonly rank: number }) => void;
  readonly data?: D;
}

/** The outcome of a rank. */
export interface RankEnd<R> {
  /** The result of its function; absent if it threw or its process died. */
  readonly value?: R;
  /** `Name: message` of what it threw. */
  readonly error?: string;
  /** The output of its process, and the lines that were reported to it. */
  readonly said: readonly string[];
  /** Exit code of its process; null after a signal. */
  readonly code?: number | null;
}

/** The message to a rank: the place of its function, and the meeting points of its worlds. */
export interface RankOrder {
  readonly run: ModulePlace;
  readonly prepare: ModulePlace | undefined;
  readonly planes: PlaneOptions;
  readonly memoryBytes: number | undefined;
  readonly data: unknown;
}

/** An exported function. */
export interface ModulePlace {
  readonly url: string;
  readonly name: string;
}

const places = new WeakMap<object, ModulePlace>();

/** Makes exported functions of a module known to {@link world}: `rankFunctions(import.meta.url, { reduce })`. */
export function rankFunctions(url: string, functions: Readonly<Record<string, object>>): void {
  for (const [name, run] of Object.entries(functions)) places.set(run, { url, name });
}

/** Ranks that run as processes. */
export interface RunningWorld<R> {
  readonly processes: readonly RankProcess[];
  /** Resolves when all these ranks have joined. */
  joined(...ranks: readonly number[]): Promise<void>;
  readonly ends: Promise<readonly RankEnd<R>[]>;
}

function placeOf(run: object): ModulePlace {
  return places.get(run) ?? assert.fail("tell rankFunctions() what ranks should run");
}

export function orderOf<D>(run: object, rank: number, options: WorldOptions<D>): RankOrder {
  const { planes = {}, memoryBytes, prepare, data } = options;
  const base = { stagingBytes: 2 ** 22, timeoutSeconds: 20, joinTimeoutSeconds: 20 };
  const functions = { run: placeOf(run), prepare: prepare === undefined ? undefined : placeOf(prepare) };
  return {
    ...functions,
    memoryBytes,
    data,
    planes: { ...base, ...typeof planes === "function" ? planes(rank) : planes },
  };
}

/** The first of a hundred ports that nobody on this host has open, below those that systems give out themselves. */
export function freePorts(): number {
  const taken = [...openPorts(), ...givenPorts];
  for (;;) {
    const first = 12_000 + Math.floor(Math.random() * 190) * 100;
    if (taken.some((port) => port >= first && port < first + 100)) continue;
    givenPorts.add(first);
    return first;
  }
}

/** The first of each hundred that this process took. */
const givenPorts = new Set<number>();

/** The local ports of this host's TCP sockets, as Linux lists them. */
function openPorts(): readonly number[] {
  return ["/proc/net/tcp", "/proc/net/tcp6"].filter((path) => existsSync(path)).flatMap((path) =>
    readFileSync(path, "utf8").split("\n").slice(1).filter((line) => line.trim() !== "").map((line) => {
      const [, local] = line.trim().split(/\s+/);
      return Number.parseInt(local?.split(":")[1] ?? assert.fail(line), 16);
    })
  );
}

/** Starts ranks as processes; those of `only`, if given. */
export function startWorld<D, R>(
  size: number,
  run: RankFunction<D, R>,
  options: WorldOptions<D> = {},
  only: readonly number[] = Array.from({ length: size }, (_, rank) => rank),
): RunningWorld<R> {
  const { over = "shm", runtimes = [RUNTIME], variables = {} } = options;
  const name = crypto.randomUUID();
  const port = freePorts();
  const processes = only.map((rank) => {
    const order = orderOf(run, rank, options);
    const planes: Omit<ShmOptions, "report"> = { run: name, worldSize: size, ...order.planes, rank };
    const script = new URL("./world_process.ts", import.meta.url);
    return startRank(script, [JSON.stringify({ ...order, over, planes, port })], {
      runtime: runtimes[rank % runtimes.length] ?? RUNTIME,
      env: { ...variables, TWIN_CARDS: String(size) },
    });
  });
  const endOf = async (process: RankProcess): Promise<RankEnd<R>> => {
    const code = await process.ended;
    const lines = process.stdout.trimEnd().split("\n");
    const last = lines.find((line) => line.startsWith("end "));
    const said = lines.filter((line) => line.startsWith("say ")).map((line) => line.slice(4));
    const end: Pick<RankEnd<R>, "value" | "error"> = last === undefined
      ? { error: `ended without a result: ${process.stderr}` }
      : JSON.parse(last.slice(4));
    return { ...end, said, code };
  };
  return {
    processes,
    joined: async (...ranks) => {
      for (const rank of ranks) {
        const process = processes[only.indexOf(rank)];
        while (process !== undefined && !process.stdout.includes("joined\n")) {
          if (process.child.exitCode !== null) throw new Error(`ended early: ${process.stdout}${process.stderr}`);
          await new Promise((resolve) => setTimeout(resolve, 5));
        }
      }
    },
    ends: Promise.all(processes.map(endOf)),
  };
}

/** Runs a function as `size` ranks; resolves with how each ended. */
export async function world<D, R>(
  size: number,
  run: RankFunction<D, R>,
  options: WorldOptions<D> = {},
): Promise<readonly RankEnd<R>[]> {
  const { over = "loopback", workers = over === "loopback" } = options;
  if (!workers) return await startWorld(size, run, options).ends;
  const orders = Array.from({ length: size }, (_, rank) => orderOf(run, rank, options));
  const { stagingBytes } = orders[0]?.planes ?? {};
  const worlds = Array.from({ length: 1 + (options.groups ?? 0) }, () => createLoopbackWorld(size, { stagingBytes }));
  const ends = await runPooled(size, new URL("./world_worker.ts", import.meta.url), { over, orders, worlds });
  return ends.map((text): RankEnd<R> => JSON.parse(String(text)));
}

/** The results of all ranks; fails with the error of a rank that has none. */
export function valuesOf<R>(ends: readonly RankEnd<R>[]): readonly R[] {
  return ends.map(({ value, error }, rank) => {
    if (error !== undefined || value === undefined) assert.fail(`rank ${rank}: ${error ?? "returned nothing"}`);
    return value;
  });
}

/** The errors of all ranks; fails if a rank has none. */
export function errorsOf(ends: readonly RankEnd<unknown>[]): readonly string[] {
  return ends.map(({ value, error }, rank) => error ?? assert.fail(`rank ${rank} returned ${JSON.stringify(value)}`));
}
