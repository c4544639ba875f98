/**
 * A run that saves every step is killed at moments of chance, again and again, and resumed each time, under Bun and Deno in turn. A kill
 * hits one rank, all ranks, or the launcher. A third of the moments is counted from the start of the ranks, and hits joining and loading.
 * The others are counted from the first checkpoint that is saved, and hit steps and saves.
 *
 * @module
 */
import { at } from "../../src/at.ts";
import { listCheckpoints } from "../../src/checkpoint/sharded/directory.ts";
import { temporaryDirectory } from "../../tests/support/temporary.ts";
import { type Ended, essence, flagsIn, metricLines, type Running, startRun } from "../../tests/train/runs.ts";
import { processesOf, signal } from "./members.ts";
import { type FaultReport, LIMIT_SECONDS, round } from "./report.ts";

/** Whom a kill hits: ranks, or the launcher that started them. */
const VICTIMS = [["rank 0"], ["rank 1"], ["rank 0", "rank 1"], ["launcher"]] as const;

/** In turn; float32 math of both has the same bits. */
const RUNTIMES = ["bun", "deno"] as const;

/** Most milliseconds to the kill: about what it takes to resume, and some saves. */
const LATEST_MS = 500;

/** A process of a run, with its part in it. */
interface Member {
  readonly pid: number;
  readonly part: string;
}

/** Kills a run `kills` times. In the end it must have the bits of an undisturbed run. */
export async function killAgainAndAgain(kills: number): Promise<FaultReport> {
  using folder = temporaryDirectory();
  const wrong: string[] = [];
  const lost: string[] = [];
  const flags = flagsIn(folder, "--save-every", "1", "--keep-last", "2", "--resume", "auto", "--schedule", "constant");
  const newest = (): number => listCheckpoints(folder.file("out"))[0]?.step ?? 0;
  let [saved, longest] = [0, 0];
  /** Whatever was said to be saved is there, and what is there is what the next run goes on from. */
  const check = ({ stderr }: Ended, before: number, when: string): void => {
    const resumed = /Resumed '.*' at step (\d+)/.exec(stderr)?.[1];
    if (resumed !== undefined && Number(resumed) < before) lost.push(`checkpoint-${before} ${when}`);
    if (/Skipped an incomplete checkpoint/.test(stderr)) wrong.push(`a checkpoint is not whole ${when}:\n${stderr}`);
    const said = [...stderr.matchAll(/Saved '.*checkpoint-(\d+)'/g)].map(([, text]) => Number(text));
    saved = Math.max(saved, ...said);
    if (newest() < saved) lost.push(`checkpoint-${saved} ${when}`);
  };
  for (let kill = 0; kill < kills; kill++) {
    const runtime = at(RUNTIMES, kill % RUNTIMES.length, "runtime");
    const victims = at(VICTIMS, Math.floor(Math.random() * VICTIMS.length), "victims");
    const before = newest();
    const running = startRun([...flags, "--steps", "100000"], { runtime, allowAll: true });
    const when = `after kill ${kill + 1} (${runtime}, ${victims.join(" and ")})`;
    const members = await membersOf(running);
    if (kill % 3 > 0) await running.until(/Saved '/);
    await new Promise((resolve) => setTimeout(resolve, Math.random() * LATEST_MS));
    const began = performance.now();
    for (const { pid, part } of members) if (victims.some((victim) => victim === part)) signal(pid, "SIGKILL");
    const ended = await running.ended;
    // A launcher that was killed leaves its ranks to a shell.
    while (members.some(({ pid }) => signal(pid, 0))) await new Promise((resolve) => setTimeout(resolve, 5));
    longest = Math.max(longest, (performance.now() - began) / 1000);
    if (ended.code === 0) wrong.push(`the run ended with 0 ${when}`);
    check(ended, before, when);
  }
  const steps = String(newest() + 2);
  const last = await startRun([...flags, "--steps", steps]).ended;
  if (last.code !== 0) wrong.push(`it cannot be resumed:\n${last.stderr}`);
  check(last, Number(steps) - 2, "in the last run");
  using undisturbed = temporaryDirectory();
  await startRun(flagsIn(undisturbed, "--steps", steps, "--schedule", "constant")).ended;
  const [with_, without] = [folder, undisturbed].map((place) => metricLines(place).map(essence).join("\n"));
  if (with_ !== without) wrong.push("it is not the run that nothing happened to");
  if (longest > LIMIT_SECONDS) wrong.push(`it took ${round(longest)} s to end`);
  const told = `${kills} kills under Bun and Deno, each resumed from the newest checkpoint`;
  return {
    name: `${kills} kills at random moments`,
    named: wrong.length + lost.length === 0 ? `${told}; ${steps} steps as undisturbed, bit for bit` : "",
    ended_in_seconds: round(longest),
    lost,
    wrong: [...wrong, ...lost],
  };
}

/** Launcher and ranks of a run, once both ranks are there. */
async function membersOf({ child }: Running): Promise<Member[]> {
  for (;;) {
    const { launchers, ranks } = processesOf(child);
    if (ranks.length === 2) {
      const both = ranks.map(({ pid, rank }) => ({ pid, part: `rank ${rank}` }));
      return [...launchers.map((pid) => ({ pid, part: "launcher" })), ...both];
    }
    if (child.exitCode !== null) throw new Error(`The run ended with ${child.exitCode} before its ranks were there`);
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}
