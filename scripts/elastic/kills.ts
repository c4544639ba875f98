/**
 * A run of four ranks with copies in memory, of which one is killed again and again, at moments of chance that a seed decides: in steps, in
 * the keeping of state, while ranks start, join and load. In the end it must be the run that is resumed by hand on the same numbers of
 * ranks, bit for bit.
 *
 * @module
 */
import * as fs from "node:fs";
import * as os from "node:os";
import process from "node:process";
import { philox4x32 } from "../../src/random.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../../tests/support/temporary.ts";
import { type Ended, essence, flagsIn, metricLines, startRun } from "../../tests/train/runs.ts";
import { keepRanks } from "../../tests/train/kept_ranks.ts";
import { processesOf, signal } from "../faults/members.ts";
import { ONE_STREAM, Story, type World } from "./story.ts";

/** What was seen. */
export interface ElasticReport {
  readonly kills: number;
  readonly steps: number;
  /** Starts of ranks. */
  readonly starts: number;
  /** The numbers of ranks by which the run is resumed by hand, each with its last step. */
  readonly worlds: string;
  /** Starts with each number of ranks, from 1. */
  readonly starts_by_ranks: Readonly<Record<string, number>>;
  /** From a kill to the next step's line, where no other kill came between. */
  readonly restart_seconds: { readonly median: number; readonly most: number; readonly count: number };
  /** Of the machine, as it began: other programs' work is in the times. */
  readonly load: number;
  /** What is wrong. */
  readonly wrong: readonly string[];
}

/** Ranks at first, and the fewest. */
const [MOST, FEWEST] = [4, 2] as const;

/** Samples of a step, and the micro-batches of a rank on each number of ranks. */
const BATCH = 12;
const MICRO_BATCHES: Readonly<Record<number, number>> = { 4: 1, 3: 2, 2: 2 };

/** A third of the kills comes within this time after the one before, whatever the ranks do then. */
const ANY_MS = 1500;

/** A kill after which steps still come for so long was of a process without a place. */
const NOTICE_MS = 3000;

/** The others come within this time after a step. */
const STEP_MS = 300;

const LAUNCHER = ["--nproc-per-node", `${FEWEST}:${MOST}`, "--redundancy", "1", "--rejoin-seconds", "1"];

/**
 * Kills a rank of a run `kills` times, and compares the run with the same steps by hand.
 *
 * @param saves true if Workers write checkpoints of the run after each step
 */
export async function killRanks(
  kills: number,
  seed: number,
  runtime: "bun" | "deno",
  saves: boolean,
): Promise<ElasticReport> {
  using folder = temporaryDirectory();
  const wrong: string[] = [];
  const [load = NaN] = os.loadavg();
  const random = randomNumbers(seed);
  const saving = saves ? ["--save-every", "1", "--async-save"] : [];
  const flags = flagsIn(folder, "--global-batch", String(BATCH), "--schedule", "constant", ...saving);
  const env = { FULLYSHARD_SHM_DIRECTORY: fs.mkdtempSync("/dev/shm/fullyshard-elastic-") };
  const launcher = [...LAUNCHER, "--max-restarts", String(kills)];
  const running = startRun([...flags, "--steps", "1000000"], {
    runtime,
    env,
    allowAll: true,
    flags: launcher,
    shell: ONE_STREAM,
  });
  const story = new Story(running);
  let over: Ended | undefined;
  void running.ended.then((ended) => over = ended);
  const restarts: number[] = [];
  let killedAt = NaN;
  let killed = 0;
  let wentOn = false;
  story.onGoOn = () => wentOn = true;
  story.onStep = () => {
    // The death of a spare process ends no step, and a step may end between a kill and its notice.
    if (!Number.isNaN(killedAt) && wentOn) restarts.push((performance.now() - killedAt) / 1000);
    if (wentOn || performance.now() > killedAt + NOTICE_MS) killedAt = NaN;
  };
  while (killed < kills && over === undefined) {
    const isAnyTime = random() < 1 / 3;
    if (!isAnyTime || killed === 0) await stepAfter(story, () => over !== undefined);
    await sleep(random() * (isAnyTime ? ANY_MS : STEP_MS));
    const { ranks, spares } = processesOf(running.child);
    const pids = [...ranks.map(({ pid }) => pid), ...spares];
    const victim = pids[Math.floor(random() * pids.length)];
    if (victim === undefined || !signal(victim, "SIGKILL")) continue; // between two starts there is no rank
    killed++;
    [killedAt, wentOn] = [performance.now(), false];
  }
  // The last kill must be followed by a step, or nothing would show that the run went on.
  while (!Number.isNaN(killedAt) && over === undefined) await sleep(5);
  for (const pid of processesOf(running.child).launchers) process.kill(pid, "SIGTERM");
  const ended = await running.ended;
  if (ended.code !== 143) {
    wrong.push(`it ended with ${ended.code}, expected 143 after SIGTERM:\n${ended.stdout.slice(-4000)}`);
  }
  const left = fs.readdirSync(env.FULLYSHARD_SHM_DIRECTORY).filter((name) => name.startsWith("fullyshard_kept"));
  if (left.length > 0) wrong.push(`in memory is left: ${left.join(", ")}`);
  fs.rmSync(env.FULLYSHARD_SHM_DIRECTORY, { recursive: true });
  const steps = metricLines(folder).length;
  if (wrong.length === 0) wrong.push(...await compare(folder, flags, story.worlds(steps), steps, runtime));
  const sorted = restarts.toSorted((a, b) => a - b);
  const byRanks = Map.groupBy(story.segments, ({ ranks }) => ranks);
  return {
    kills: killed,
    steps,
    starts: story.starts,
    worlds: story.worlds(steps).map(({ ranks, last }) => `${ranks} to ${last}`).join(", "),
    starts_by_ranks: Object.fromEntries([...byRanks].sort().map(([ranks, starts]) => [ranks, starts.length])),
    restart_seconds: {
      median: round(sorted[Math.floor(sorted.length / 2)]),
      most: round(sorted.at(-1)),
      count: sorted.length,
    },
    load: round(load),
    wrong,
  };
}

/**
 * Takes the same steps by hand, and two more on both sides, after which the models are compared. The processes of these ranks are kept from
 * one number of ranks to the next.
 */
async function compare(
  folder: TemporaryDirectory,
  flags: readonly string[],
  worlds: readonly World[],
  steps: number,
  runtime: "bun" | "deno",
): Promise<string[]> {
  const hand = ["--out", folder.file("hand"), "--resume", "auto"];
  const byHand = [...worlds.map(({ ranks, last }) => ({ ranks, last, out: hand })), {
    ranks: MOST,
    last: steps + 2,
    out: hand,
  }];
  using kept = keepRanks(runtime);
  for (const { ranks, last, out } of [...byHand, { ranks: MOST, last: steps + 2, out: ["--resume", "auto"] }]) {
    const isLast = last === steps + 2;
    const length = isLast ? ["--steps", String(last)] : ["--steps", "1000000", "--stop-after", String(last)];
    const division = ["--micro-batches", String(MICRO_BATCHES[ranks])];
    const { code, stderr } = await kept.run([...flags, ...length, ...out, ...division], { ranks });
    if (code !== 0) return [`the run by hand on ${ranks} ranks to step ${last} ended with ${code}:\n${stderr}`];
  }
  const [run, alike] = [metricLines(folder), metricLines(folder, "hand")].map((lines) => lines.map(essence));
  const first = run?.findIndex((line, i) => line !== alike?.[i]) ?? 0;
  const wrong = first < 0 && run?.length === alike?.length
    ? []
    : [`step ${first + 1} differs: ${run?.[first]}, by hand ${alike?.[first]}`];
  const model = "model/model.safetensors";
  const [own, other] = [`out/${model}`, `hand/${model}`].map((file) => fs.readFileSync(folder.file(file)));
  if (own === undefined || other === undefined || !own.equals(other)) wrong.push("the models differ");
  return wrong;
}

/** Waits for the next line of a step, or for the end. */
async function stepAfter(story: Story, isOver: () => boolean): Promise<void> {
  const before = story.steppedAt;
  while (Object.is(story.steppedAt, before) && !isOver()) await sleep(2);
}

/** Numbers from 0 to 1, by Philox. */
function randomNumbers(seed: number): () => number {
  const out = new Uint32Array(4);
  let counter = 0;
  return () => {
    philox4x32(out, counter++, 0, 0, 0, seed, 0);
    return (out[0] ?? NaN) / 2 ** 32;
  };
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

function round(seconds = NaN): number {
  return Math.round(seconds * 100) / 100;
}
