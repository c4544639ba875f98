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
import { median } from "../../bench/figures.ts";
import { IGNORE_INDEX } from "../../doors/nn.ts";
import { runPooled } from "../../tests/support/rank_pool.ts";
import { ZOO, zooModels } from "../zoo/families.ts";
import { isReport, MIXTURES } from "./parity.ts";
import { type FamilyOrders, type FamilyReport, FIRST_BATCH, OPTIMIZER, tokensOf } from "./training.ts";

/** Clipped steps of a course, and batches whose gradients are compared. Courses are short, as roundings grow with their steps. */
const LENGTHS = { steps: 5, gradientBatches: 4 } as const;
/**
 * Seeds of the models' first values. A model passes roundings of its first layers on through all others, and a router may choose
 * another expert for one of them: ratios of single models go from 0.3 to 3. So the median over models is judged, of five, and where
 * these are beyond the limit, of all twenty.
 */
const FIRST_SEEDS = [3, 4, 5, 6, 7] as const;
const FURTHER_SEEDS = Array.from({ length: 15 }, (_, i) => 8 + i);

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
  /** Medians over the models. */
  readonly ours?: PeerDistance;
  readonly theirs?: PeerDistance;
  /** Models of which these are. */
  readonly models?: number;
  /** Medians of ours divided by theirs. */
  readonly ratios?: PeerDistance;
  readonly reason?: string;
}

/**
 * What ours may be off where theirs is off by less: rounding itself. Losses and norms are five numbers each, told in float32, of which each may be off
 * by half a unit of the last place.
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
  seeds: readonly number[],
): readonly (readonly Course[] | string)[] {
  const runs = [
    { dtype: "float64", ranks: 1, mesh: {} },
    ...meshes.map(({ ranks, config }) => ({ dtype: "float32", ranks, mesh: config })),
  ];
  const { steps, gradientBatches } = LENGTHS;
  const training = {
    ignored: IGNORE_INDEX,
    optimizer: OPTIMIZER,
    firsts: Array.from({ length: gradientBatches }, (_, i) => rowsOf(vocabSize, FIRST_BATCH + i)),
    steps: Array.from({ length: steps }, (_, step) => rowsOf(vocabSize, step)),
    models: seeds.map(folderOf),
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
    const found: readonly Course[] | { readonly error: string } = JSON.parse(readFileSync(path, "utf8"));
    return "error" in found ? lastLine(found.error) : found;
  });
}

function lastLine(text: string): string {
  return text.trim().split("\n").at(-1) ?? "";
}

/** The name of the Hugging Face folder of a seed's first values. */
function folderOf(seed: number): string {
  return `model-${seed}`;
}

/** Distances of one model's courses from its course in float64. */
interface Compared {
  readonly own: PeerDistance;
  readonly other: PeerDistance;
}

function judged(compared: readonly Compared[]): Omit<PeerItem, "mesh" | "family" | "tied"> {
  const ratios = ofEach((key) =>
    compared.map(({ own, other }) => own[key] / Math.max(other[key], LEAST[key] / CHANCE))
  );
  const result = {
    models: compared.length,
    ours: ofEach((key) => compared.map(({ own }) => own[key])),
    theirs: ofEach((key) => compared.map(({ other }) => other[key])),
    ratios,
  };
  const farther = KEYS.filter((key) => !(ratios[key] <= CHANCE)).map((key) => `${key} ${ratios[key].toFixed(2)} times`);
  if (farther.length === 0) return { status: "pass", ...result };
  return { status: "fail", ...result, reason: `farther from float64 than transformers: ${farther.join("; ")}` };
}

const KEYS = ["losses", "norms", "gradients", "weights"] as const satisfies readonly (keyof PeerDistance)[];

/** The median of each key's numbers; NaN where one of them is none. */
function ofEach(numbers: (key: keyof PeerDistance) => readonly number[]): PeerDistance {
  const middle = (key: keyof PeerDistance): number => {
    const all = numbers(key);
    return all.some(Number.isNaN) ? NaN : median(all) ?? NaN;
  };
  const [losses, norms, gradients, weights] = [
    middle("losses"),
    middle("norms"),
    middle("gradients"),
    middle("weights"),
  ];
  return { losses, norms, gradients, weights };
}

function missing(place: number): never {
  throw new Error(`model ${place} was not trained`);
}

/** What came of a mesh: distances by model, why transformers has no such training, or what failed here. */
type Found = readonly Compared[] | { readonly skipped: string } | Error;

/** Trains the models of some seeds over each mesh, here and by transformers. */
async function compare(
  python: string,
  config: Readonly<Record<string, unknown>>,
  meshes: readonly PeerMesh[],
  seeds: readonly number[],
): Promise<readonly Found[]> {
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-peer-`);
  try {
    for (const seed of seeds) {
      await train(1, { config, seed, axes: { shard: 1 }, steps: 0, folder: `${folder}/${folderOf(seed)}` });
    }
    const [exact, ...theirs] = trainTheirs(python, folder, Number(config["vocab_size"]), meshes, seeds);
    if (exact === undefined || typeof exact === "string") {
      return meshes.map(() => new Error(`no float64 training: ${exact}`));
    }
    const found: Found[] = [];
    for (const [i, mesh] of meshes.entries()) {
      const others = theirs[i] ?? "no run";
      found.push(
        typeof others === "string"
          ? { skipped: `transformers: ${others}` }
          : await comparedOver(mesh, config, seeds, others, exact).catch(asError),
      );
    }
    return found;
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** Trains over a mesh here, and compares each seed's model. */
async function comparedOver(
  { ranks, axes, expertParallel }: PeerMesh,
  config: Readonly<Record<string, unknown>>,
  seeds: readonly number[],
  theirs: readonly Course[],
  exact: readonly Course[],
): Promise<readonly Compared[]> {
  const compared: Compared[] = [];
  const laid = expertParallel === undefined ? { axes } : { axes, expertParallel };
  for (const [i, seed] of seeds.entries()) {
    const ours = await train(ranks, { config, seed, ...laid, ...LENGTHS, cpuMath: "auto", tellsWeights: true });
    const expected = exact[i] ?? missing(i);
    compared.push({ own: distanceOf(ours, expected), other: distanceOf(theirs[i] ?? missing(i), expected) });
  }
  return compared;
}

function asError(thrown: unknown): Error {
  return thrown instanceof Error ? thrown : new Error(String(thrown));
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
      const first = await compare(python, config, meshes, FIRST_SEEDS);
      for (const [i, mesh] of meshes.entries()) {
        let found = first[i] ?? new Error("no result");
        if (Array.isArray(found) && judged(found).status === "fail") {
          const [further = new Error("no result")] = await compare(python, config, [mesh], FURTHER_SEEDS);
          found = Array.isArray(further) ? [...found, ...further] : further;
        }
        const item = { mesh: mesh.name, family, tied };
        if (found instanceof Error) tell({ ...item, status: "fail", reason: found.message });
        else if ("skipped" in found) tell({ ...item, status: "skipped", reason: found.skipped });
        else tell({ ...item, ...judged(found) });
      }
    }
  }
}
