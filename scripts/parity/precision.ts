/**
 * The distance of bfloat16 and float16 from float32, here and in PyTorch: `PEER_PYTHON=python bun scripts/parity/precision.ts` trains
 * the Llama of parity with FSDP on two ranks in each precision, then by `precision.py` the same with PyTorch's `fully_shard` and
 * `MixedPrecisionPolicy`, from the same weights on the same data, and prints the distances as JSON lines. `--write` keeps
 * PyTorch's in `tests/fixtures/precision.json`, which `tests/fsdp/precision_test.ts` holds trainings to.
 *
 * @module
 */
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { IGNORE_INDEX } from "../../doors/nn.ts";
import { type Course, type Distance, distanceOf, furthest, meanOf } from "./distance.ts";
import { type Courses, distancesOf, nameOf, NARROW, RANKS, STEPS, trainOurs, wideTraining } from "./precisions.ts";
import { configOf, LEARNING_RATE, MAX_GRAD_NORM, microBatch, type PrecisionNames } from "./training.ts";

/** Initial weights that are trained from. */
const SEEDS = Array.from({ length: 20 }, (_, i) => i + 1);
const WIDE: PrecisionNames = { paramDtype: "float32", reduceDtype: "float32" };
const FIXTURE = new URL("../../tests/fixtures/precision.json", import.meta.url);

/** Distances over seeds. */
interface Summary {
  readonly furthest: Distance;
  readonly mean: Distance;
}

/** Writes what `precision.py` trains. */
function writeTraining(folder: string, seed: number, initial: Float32Array): void {
  const batches = Array.from(
    { length: STEPS },
    (_, step) => Array.from({ length: RANKS }, (_, rank) => microBatch(step, rank, RANKS)),
  );
  const [first] = batches.flat();
  if (first === undefined) throw new Error("no micro-batch");
  mkdirSync(folder);
  writeFileSync(`${folder}/initial.bin`, new Uint8Array(initial.buffer));
  writeFileSync(
    `${folder}/training.json`,
    JSON.stringify({
      config: configOf(wideTraining(seed)),
      precisions: [WIDE, ...NARROW].map(({ paramDtype, reduceDtype }) => [paramDtype, reduceDtype]),
      batch: first.batch,
      seq: first.seq,
      ignore_index: IGNORE_INDEX,
      max_grad_norm: MAX_GRAD_NORM,
      learning_rate: LEARNING_RATE,
      micro_batches: batches.map((ranks) =>
        ranks.map(({ inputIds, labels }) => ({ input_ids: [...inputIds], labels: [...labels] }))
      ),
    }),
  );
}

/** The output of `precision.py`. */
function readCourses(folder: string, initial: Float32Array): Courses {
  const [wide, ...narrow] = [WIDE, ...NARROW].map((precision) => courseAt(`${folder}/${nameOf(precision)}`));
  if (wide === undefined) throw new Error("PyTorch left no float32 training");
  return { initial, wide, narrow };
}

function courseAt(path: string): Course {
  const { losses, gradNorms }: Omit<Course, "weights"> = JSON.parse(readFileSync(`${path}.json`, "utf8"));
  return { losses, gradNorms, weights: new Float32Array(Uint8Array.from(readFileSync(`${path}.bin`)).buffer) };
}

function tell(line: Readonly<Record<string, unknown>>): void {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

/** The furthest and the mean of all seeds, by precision. */
function summaryOf(all: readonly Readonly<Record<string, Distance>>[]): Readonly<Record<string, Summary>> {
  return Object.fromEntries(
    NARROW.map(nameOf).map((name) => {
      const distances = all.flatMap((one) => one[name] ?? []);
      return [name, { furthest: furthest(distances), mean: meanOf(distances) }];
    }),
  );
}

async function compareInto(work: string, python: string): Promise<void> {
  const ours: Courses[] = [];
  for (const seed of SEEDS) {
    const courses = await trainOurs(seed, "wasm");
    writeTraining(`${work}/${seed}`, seed, courses.initial);
    ours.push(courses);
  }
  const script = fileURLToPath(new URL("./precision.py", import.meta.url));
  const args = [script, ...SEEDS.map((seed) => `${work}/${seed}`)];
  const { status, stdout } = spawnSync(python, args, { stdio: ["ignore", "pipe", "inherit"], encoding: "utf8" });
  if (status !== 0) throw new Error(`${python} ended with status ${status}`);
  const theirs = ours.map(({ initial }, i) => readCourses(`${work}/${SEEDS[i]}`, initial));
  for (const [i, seed] of SEEDS.entries()) {
    const [one, other] = [ours[i], theirs[i]];
    if (one === undefined || other === undefined) throw new Error(`seed ${seed} was not trained from`);
    // In float32 only rounding tells the two apart: it is the same training.
    const float32 = distanceOf(one.wide, other.wide, one.initial);
    tell({ seed, float32, ours: distancesOf(one), torch: distancesOf(other) });
  }
  const [of, distances] = [summaryOf(ours.map(distancesOf)), summaryOf(theirs.map(distancesOf))];
  const facts = { torch: stdout.trim(), seeds: SEEDS.length, steps: STEPS };
  tell({ ...facts, ours: of, theirs: distances });
  if (process.argv.includes("--write")) {
    writeFileSync(FIXTURE, `${JSON.stringify({ ...facts, distances }, null, 2)}\n`);
  }
}

async function main(): Promise<void> {
  const python = process.env["PEER_PYTHON"];
  if (python === undefined) {
    throw new Error("PEER_PYTHON: expected a Python that has torch and transformers, got nothing");
  }
  const work = mkdtempSync(`${tmpdir()}/fullyshard-precision-`);
  try {
    await compareInto(work, python);
  } finally {
    rmSync(work, { recursive: true });
  }
}

if (import.meta.main) await main();
