/**
 * The items of `npm run clusters`: the suite of planes, bits of trainings, and faults, over each MPI of this machine, under both
 * runtimes, on one host and on two.
 *
 * @module
 */
import { createHash } from "node:crypto";
import { fileURLToPath } from "node:url";
import { conform, scenarioNames } from "../../tests/conformance/planes.ts";
import { programOf } from "../../tests/support/rank_process.ts";
import { type MpiLauncher, mpiWorld, onThisHost } from "../../tests/support/mpi_world.ts";
import { type RankEnd, valuesOf, world } from "../../tests/support/world.ts";
import type { TrainingCase } from "../parity/training.ts";
import { type Hosts, onHosts } from "./hosts.ts";
import { trainAll, type TrainedPart } from "./ranks.ts";

/** What is shown. */
export interface ClusterItem {
  readonly name: string;
  readonly status: "pass" | "fail" | "skip";
  readonly reason?: string;
}

export type RuntimeName = "bun" | "deno";
/** Runtimes of a world's ranks; `both` has every second rank under Deno, the others under Bun. */
export type WorldRuntimes = RuntimeName | "both";

/** Ranks that a launcher starts somewhere. */
export interface Layout {
  readonly name: string;
  readonly size: number;
  readonly command: (launcher: MpiLauncher, size: number, rank: readonly string[]) => readonly string[];
}

export const oneHost = (size: number): Layout => ({ name: `${size} ranks on 1 host`, size, command: onThisHost });

/** @param counts ranks on each host; with `inTurn`, ranks that follow each other are on different hosts */
export function severalHosts(hosts: Hosts, counts: readonly number[], inTurn = false): Layout {
  const size = counts.reduce((sum, count) => sum + count, 0);
  return {
    name: `${size} ranks on ${hosts.addresses.length} hosts (${counts.join(" + ")}${inTurn ? ", in turn" : ""})`,
    size,
    command: (launcher, _, rank) => onHosts(hosts, launcher, counts, rank, inTurn),
  };
}

/** Options of ranks of a runtime, or of both. */
function ranksUnder(
  runtime: WorldRuntimes,
  command: Layout["command"],
): { readonly runtime: RuntimeName; readonly command: Layout["command"] } {
  if (runtime !== "both") return { runtime, command };
  const [bun, deno] = [programOf("bun"), programOf("deno")];
  if (bun === undefined || deno === undefined) throw new Error("needs Bun and Deno");
  const mixed = fileURLToPath(new URL("./mixed.sh", import.meta.url));
  return {
    runtime: "bun",
    // A rank's command is `bun run script …`.
    command: (launcher, size, [, , ...script]) => command(launcher, size, [mixed, bun, deno, ...script]),
  };
}

const MEMORY_BYTES: number = 2 ** 27;
const TIMEOUT_MS = 240_000;

/**
 * Every scenario of the suite, an item each. The launcher may end with another code than 0: scenarios abort their groups, and a rank
 * whose messages were given up leaves without `MPI_Finalize`.
 */
export async function planeItems(
  launcher: MpiLauncher,
  runtime: WorldRuntimes,
  { name: where, size, command }: Layout,
): Promise<readonly ClusterItem[]> {
  const options = { ...ranksUnder(runtime, command), timeoutMs: TIMEOUT_MS, memoryBytes: MEMORY_BYTES };
  const ends = await mpiWorld(launcher, size, conform, options);
  const failed = ends.map(({ error }) => error).find((error) => error !== undefined);
  return scenarioNames(size).map((scenario, index): ClusterItem => {
    const name = `${launcher.name}, ${runtime}, ${where}: ${scenario}`;
    const problems = ends.map(({ value }) => value?.[index] ?? failed ?? "no outcome").filter((text) => text !== "");
    return problems[0] === undefined
      ? { name, status: "pass" }
      : { name, status: "fail", reason: problems[0].slice(0, 600) };
  });
}

/** Trainings of each way of sharding. */
function casesOf(size: number): readonly (readonly [string, TrainingCase])[] {
  const base = { tied: true, microBatches: size === 8 ? 8 : 12, steps: 3 } as const;
  return [
    ["FSDP", { ...base, mode: "fsdp-reshard" }],
    ["DDP", { ...base, mode: "ddp" }],
    ["FSDP that prefetches", { ...base, mode: "fsdp-reshard", prefetches: true }],
    ["FSDP that keeps parameters, in bfloat16", {
      ...base,
      mode: "fsdp-keep",
      precision: { paramDtype: "bfloat16", reduceDtype: "bfloat16" },
    }],
    ...size % 2 === 0 && size > 2 ? [["HSDP", { ...base, mode: "fsdp-reshard", replicas: 2 }] as const] : [],
  ];
}

/** Digest of what the ranks have of each training: losses, norms, and all weights whatever their shards. */
function digestsOf(ends: readonly RankEnd<readonly TrainedPart[]>[]): readonly string[] {
  const ranks = valuesOf(ends);
  return (ranks[0] ?? []).map((first, index) => {
    const weights = new Map<string, string>();
    for (const rank of ranks) {
      for (const { fqn, offset, bits } of rank[index]?.owned ?? []) {
        if (bits !== "") weights.set(`${fqn} ${String(offset).padStart(12, "0")}`, bits);
      }
    }
    const whole = Map.groupBy([...weights].sort(([a], [b]) => a < b ? -1 : 1), ([key]) => key.slice(0, -13));
    if (whole.size === 0) throw new Error("ranks reported no weights");
    const hash = createHash("sha256").update(JSON.stringify([first.losses, first.gradNorms]));
    for (const [fqn, parts] of whole) hash.update(`${fqn} ${parts.map(([, bits]) => bits).join("")}`);
    return hash.digest("hex").slice(0, 12);
  });
}

const shared = new Map<number, Promise<readonly string[]>>();

/** Digests of the trainings over shared memory, which are made once. */
function sharedDigests(size: number): Promise<readonly string[]> {
  const made = shared.get(size) ?? world(size, trainAll, {
    over: size === 1 ? "loopback" : "shm",
    data: casesOf(size).map(([, training]) => training),
    memoryBytes: MEMORY_BYTES,
    planes: { timeoutSeconds: 120 },
  }).then(digestsOf);
  shared.set(size, made);
  return made;
}

/** The code of the launcher after ranks that all ended well. */
function launcherItem(world: string, ends: readonly RankEnd<readonly TrainedPart[]>[]): ClusterItem {
  const other = ends.find(({ code }) => code !== 0);
  const name = `${world}: the launcher ends with 0`;
  return other === undefined
    ? { name, status: "pass" }
    : { name, status: "fail", reason: `it ended with ${other.code}` };
}

/** Trainings over MPI, with the bits of those over shared memory. */
export async function trainingItems(
  launcher: MpiLauncher,
  runtime: WorldRuntimes,
  { name: where, size, command }: Layout,
): Promise<readonly ClusterItem[]> {
  const data = casesOf(size);
  const name = (what: string): string =>
    `${launcher.name}, ${runtime}, ${where}: ${what} has the bits of shared memory`;
  try {
    const expected = await sharedDigests(size);
    const ends = await mpiWorld(launcher, size, trainAll, {
      ...{ ...ranksUnder(runtime, command), timeoutMs: TIMEOUT_MS, memoryBytes: MEMORY_BYTES },
      planes: { timeoutSeconds: 120 },
      data: data.map(([, training]) => training),
    });
    const found = digestsOf(ends);
    return [
      ...data.map(([what], index): ClusterItem =>
        found[index] === expected[index]
          ? { name: name(what), status: "pass" }
          : { name: name(what), status: "fail", reason: `${found[index]}, not ${expected[index]}` }
      ),
      {
        name: `${launcher.name}, ${runtime}, ${where}: FSDP and DDP have the same bits`,
        ...found[0] === found[1] ? { status: "pass" } : { status: "fail", reason: `${found[0]} and ${found[1]}` },
      },
      launcherItem(`${launcher.name}, ${runtime}, ${where}`, ends),
    ];
  } catch (error) {
    return data.map(([what]) => ({ name: name(what), status: "fail", reason: String(error).slice(0, 600) }));
  }
}
