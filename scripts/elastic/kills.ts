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
import { temporaryDirectory } from "../../tests/support/temporary.ts";
import { type Ended, flagsIn, metricLines, startRun } from "../../tests/train/runs.ts";
import { keepRanks } from "../../tests/train/kept_ranks.ts";
import { processesOf, signal } from "../faults/members.ts";
import { ByHand, differences, worldsText } from "./by_hand.ts";
import { randomNumbers, round, type Seconds, secondsOf, sleep } from "./moments.ts";
import { ONE_STREAM, Story } from "./story.ts";

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
  readonly restart_seconds: Seconds;
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
  const worlds = story.worlds(steps);
  if (wrong.length === 0) {
    // Two more steps on both sides: the models are written at the end.
    const last = { ranks: MOST, last: steps + 2 };
    using ranks = keepRanks(runtime);
    const byHand = new ByHand(ranks, flags, MICRO_BATCHES);
    wrong.push(
      ...await byHand.take([...worlds, last], folder.file("hand")) ?? await byHand.take([last], undefined) ??
        differences(folder, "hand"),
    );
  }
  const byRanks = Map.groupBy(story.segments, ({ ranks }) => ranks);
  return {
    kills: killed,
    steps,
    starts: story.starts,
    worlds: worldsText(worlds),
    starts_by_ranks: Object.fromEntries([...byRanks].sort().map(([ranks, starts]) => [ranks, starts.length])),
    restart_seconds: secondsOf(restarts),
    load: round(load),
    wrong,
  };
}

/** Waits for the next line of a step, or for the end. */
async function stepAfter(story: Story, isOver: () => boolean): Promise<void> {
  const before = story.steppedAt;
  while (Object.is(story.steppedAt, before) && !isOver()) await sleep(2);
}
