/**
 * `npm run parity -- --axes --peer transformers`: families over meshes beside transformers' own trainings on the same meshes over gloo, from the same
 * weights on the same data. Both are measured against a training in float64.
 *
 * @module
 */
import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { fileURLToPath } from "node:url";
import { IGNORE_INDEX } from "../../doors/nn.ts";
import { runPooled } from "../../tests/support/rank_pool.ts";
import { ZOO, zooModels } from "../zoo/families.ts";
import { isReport, MIXTURES } from "./parity.ts";
import { type FamilyOrders, type FamilyReport, FIRST_BATCH, OPTIMIZER, tokensOf } from "./training.ts";

/**
 * Clipped steps of a course, courses, and batches whose gradients are compared.
 * - One norm in five may be off by four units in the last place, beside others that are off by one. So a single course may put
 *   either side farther from float64 by chance.
 * - Roundings grow with the steps of a course, so there are several short courses in place of a long one.
 */
const LENGTHS = { steps: 5, courses: 4, gradientBatches: 8 } as const;

/** A mesh of ours, and as a DistributedConfig lays it. */
interface PeerMesh extends Pick<FamilyOrders, "axes" | "expertParallel"> {
  readonly name: string;
  readonly ranks: number;
  readonly config: Readonly<Record<string, number>>;
}

const MESHES: readonly PeerMesh[] = [
  { name: "tp 2", axes: { tensor: 2 }, ranks: 2, config: { tp_size: 2 } },
  { name: "ep 2", axes: { shard: 1, expert: 2 }, ranks: 2, config: { fsdp_size: 2, ep_size: 2 } },
  { name: "tp 4", axes: { tensor: 4 }, ranks: 4, config: { tp_size: 4 } },
  { name: "fsdp 2 × tp 2", axes: { shard: 2, tensor: 2 }, ranks: 4, config: { fsdp_size: 2, tp_size: 2 } },
  { name: "fsdp 2 × ep 2", axes: { shard: 2, expert: 2 }, ranks: 4, config: { fsdp_size: 4, ep_size: 2 } },
  { name: "ep over tp 2", axes: { tensor: 2 }, expertParallel: true, ranks: 2, config: { tp_size: 2, ep_size: 2 } },
  {
    name: "ep over fsdp 2 × tp 2",
    axes: { shard: 2, tensor: 2 },
    expertParallel: true,
    ranks: 4,
    config: { fsdp_size: 2, tp_size: 2, ep_size: 2 },
  },
  {
    name: "ep 2 × ep over tp 2",
    axes: { shard: 1, expert: 2, tensor: 2 },
    expertParallel: true,
    ranks: 4,
    config: { fsdp_size: 2, tp_size: 2, ep_size: 4 },
  },
];

/** Results of a training: numbers by step, and by name of a parameter. */
type Course = Pick<FamilyReport, "losses" | "norms" | "gradients" | "weights">;

/** Distances from float64, each the norm of what is off as a share of the norm of what should be. */
export type PeerDistance = Readonly<Record<keyof Course, number>>;

/** What came of a family over a mesh, beside transformers. */
export interface PeerItem {
  readonly mesh: string;
  readonly family: string;
  readonly tied: boolean;
  /** `skipped` where transformers has no such training. */
  readonly status: "pass" | "fail" | "skipped";
  readonly ours?: PeerDistance;
  readonly theirs?: PeerDistance;
  readonly reason?: string;
}

/**
 * What ours may be off where theirs is off by less: rounding itself. Losses and norms are twenty numbers each, told in float32, of which each may be
 * off by half a unit of the last place.
 */
const LEAST: PeerDistance = { losses: 2 ** -23, norms: 2 ** -23, gradients: 2 ** -23, weights: 2 ** -24 };
/** Share by which two distances differ by chance, as their sums are in other orders: transformers' own over two meshes do. */
const CHANCE = 1.1;

/** The distance of numbers, all together. */
function offBy(pairs: Iterable<readonly [found: readonly number[], expected: readonly number[]]>): number {
  let [off, all] = [0, 0];
  for (const [found, expected] of pairs) {
    if (found.length !== expected.length) return Infinity;
    for (const [i, value] of expected.entries()) {
      off += ((found[i] ?? NaN) - value) ** 2;
      all += value ** 2;
    }
  }
  return Math.sqrt(off / all);
}

/** @throws {Error} if the two have parameters of other names */
function distanceOf(found: Course, expected: Course): PeerDistance {
  const named = (key: "gradients" | "weights"): number => {
    const [ours, theirs] = [found[key], expected[key]];
    const [names, others] = [Object.keys(ours).sort().join(), Object.keys(theirs).sort().join()];
    if (names !== others) throw new Error(`expected ${key} of ${others}, got those of ${names}`);
    return offBy(Object.entries(theirs).map(([name, values]) => [ours[name] ?? [], values]));
  };
  return {
    losses: offBy([[found.losses, expected.losses]]),
    norms: offBy([[found.norms, expected.norms]]),
    gradients: named("gradients"),
    weights: named("weights"),
  };
}

async function train(ranks: number, orders: FamilyOrders): Promise<FamilyReport> {
  const reports = await runPooled(ranks, new URL("./rank.ts", import.meta.url), orders);
  const [main] = reports.filter(isReport);
  if (main === undefined) throw new Error("a rank reported nothing");
  return main;
}

/** Ids and labels of a batch, by row. */
function rowsOf(
  vocabSize: number,
  step: number,
): { readonly ids: readonly (readonly number[])[]; readonly labels: readonly (readonly number[])[] } {
  const { all, targets, seq } = tokensOf(vocabSize, step);
  const rows = (values: Int32Array): readonly (readonly number[])[] =>
    Array.from({ length: values.length / seq }, (_, row) => [...values.subarray(row * seq, (row + 1) * seq)]);
  return { ids: rows(all), labels: rows(targets) };
}

/** Has transformers train in a folder that holds the model, by the runs in turn. */
function trainTheirs(
  python: string,
  folder: string,
  vocabSize: number,
  meshes: readonly PeerMesh[],
): readonly (Course | string)[] {
  const runs = [
    { dtype: "float64", ranks: 1, mesh: {} },
    ...meshes.map(({ ranks, config }) => ({ dtype: "float32", ranks, mesh: config })),
  ];
  const { steps, courses, gradientBatches } = LENGTHS;
  const batches = Array.from(
    { length: courses },
    (_, course) => Array.from({ length: steps }, (_, step) => rowsOf(vocabSize, course * steps + step)),
  );
  const training = {
    ignored: IGNORE_INDEX,
    optimizer: OPTIMIZER,
    firsts: Array.from({ length: gradientBatches }, (_, i) => rowsOf(vocabSize, FIRST_BATCH + i)),
    courses: batches,
    runs,
  };
  writeFileSync(`${folder}/training.json`, JSON.stringify(training));
  const script = fileURLToPath(new URL("./peer.py", import.meta.url));
  const { status, stderr } = spawnSync(python, [script, folder], {
    env: { ...process.env, OMP_NUM_THREADS: "1", HF_HUB_OFFLINE: "1", TOKENIZERS_PARALLELISM: "false" },
    encoding: "utf8",
    maxBuffer: 2 ** 28,
  });
  return runs.map((_, number) => {
    const path = `${folder}/${number}.json`;
    if (!existsSync(path)) return `no rank told anything: status ${status}: ${lastLine(stderr)}`;
    const found: Course | { readonly error: string } = JSON.parse(readFileSync(path, "utf8"));
    return "error" in found ? lastLine(found.error) : found;
  });
}

function lastLine(text: string): string {
  return text.trim().split("\n").at(-1) ?? "";
}

function judged(ours: Course, theirs: Course | string, exact: Course): Omit<PeerItem, "mesh" | "family" | "tied"> {
  if (typeof theirs === "string") return { status: "skipped", reason: `transformers: ${theirs}` };
  const [own, other] = [distanceOf(ours, exact), distanceOf(theirs, exact)];
  const farther = Object.entries(LEAST).flatMap(([key, least]) => {
    const [a, b] = [own, other].map((distance) => new Map(Object.entries(distance)).get(key) ?? NaN);
    return a !== undefined && b !== undefined && a <= Math.max(CHANCE * b, least) ? [] : [`${key} ${a} beside ${b}`];
  });
  const status = farther.length === 0 ? "pass" : "fail";
  const reason = farther.length === 0
    ? {}
    : { reason: `farther from float64 than transformers: ${farther.join("; ")}` };
  return { status, ours: own, theirs: other, ...reason };
}

/** Trains families over meshes whose names contain `part`, and calls `tell` with each item. */
export async function transformersParity(
  python: string,
  families: readonly string[],
  part: string,
  tell: (item: PeerItem) => void,
): Promise<void> {
  for (const family of families.length === 0 ? ZOO : families) {
    const meshes = MESHES.filter(({ name }) =>
      name.includes(part) && (!name.startsWith("ep ") && !name.includes(" ep ") || MIXTURES.includes(family))
    );
    if (meshes.length === 0) continue;
    for (const { tied, hfConfig: config } of zooModels(family)) {
      const folder = mkdtempSync(`${tmpdir()}/fullyshard-peer-`);
      try {
        await train(1, { config, axes: { shard: 1 }, steps: 0, folder: `${folder}/model` });
        const [exact, ...theirs] = trainTheirs(python, folder, Number(config["vocab_size"]), meshes);
        for (const [i, { name: mesh, ranks, config: _, ...laid }] of meshes.entries()) {
          const item = { mesh, family, tied };
          try {
            if (exact === undefined || typeof exact === "string") throw new Error(`no float64 training: ${exact}`);
            const ours = await train(ranks, {
              config,
              ...laid,
              ...LENGTHS,
              tellsWeights: true,
            });
            tell({ ...item, ...judged(ours, theirs[i] ?? "no run", exact) });
          } catch (error) {
            tell({ ...item, status: "fail", reason: error instanceof Error ? error.message : String(error) });
          }
        }
      } finally {
        rmSync(folder, { recursive: true });
      }
    }
  }
}
