/**
 * A step with a live page that is read, a trace and metrics, by a step without these. Both runs are there at a time and compute by
 * turns of some seconds, so that what else changes on the machine changes both. A case's figure is the median of the turns' ratios:
 * of the time of a step of two ranks, or of the processors' time of one rank with its page and reader, which other programs change
 * less.
 *
 * @module
 */
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { sleep } from "../src/runtime/clock.ts";
import { median } from "./figures.ts";
import { launch, runOfItsOwn, runProgram } from "./process.ts";
import type { BenchSetting, Facts, Subject } from "./subject.ts";
import { turnFile, type TurnTimes, WATCHED } from "./watched.ts";

/** Turns of each run in a round. */
const TURNS = 8;

/** Milliseconds between turns: the page of the run that rests looks at its last steps. */
const REST_MS = 300;

const MODES = [WATCHED, "plain"] as const;
type Mode = typeof MODES[number];

interface WatchingCase {
  readonly model: string;
  readonly ranks: number;
  /** The time that is compared. */
  readonly figure: keyof TurnTimes;
  readonly target?: number;
}

const CASES: Readonly<Record<string, WatchingCase>> = {
  "8m-w2": { model: "8m", ranks: 2, figure: "step", target: 1.02 },
  "8m-processor-w1": { model: "8m", ranks: 1, figure: "processor", target: 1.02 },
  "tiny-w2": { model: "tiny", ranks: 2, figure: "step" },
};

/** Milliseconds of a step in the turns of a round. */
type Rounds = Readonly<Record<Mode, readonly number[]>>;

/** Runs a watched and a plain training by turns. */
async function byTurns({ runtime }: BenchSetting, { model, ranks, figure }: WatchingCase): Promise<Rounds> {
  const root = mkdtempSync(`${tmpdir()}/fullyshard-watching-`);
  const folderOf = (mode: Mode): string => `${root}/${mode}`;
  const times: Record<Mode, number[]> = { watched: [], plain: [] };
  let hasFailed = false;
  const wait = async (mode: Mode, turn: number): Promise<TurnTimes> => {
    const file = turnFile(folderOf(mode), "done", turn);
    while (!existsSync(file)) {
      if (hasFailed) throw new Error("a run has ended before its turns");
      await sleep(5);
    }
    return JSON.parse(readFileSync(file, "utf8"));
  };
  const takeTurns = async (): Promise<void> => {
    for (const mode of MODES) await wait(mode, 0);
    for (let turn = 1; turn <= TURNS; turn++) {
      for (const mode of turn % 2 === 1 ? MODES : MODES.toReversed()) {
        await sleep(REST_MS);
        writeFileSync(turnFile(folderOf(mode), "begin", turn), "");
        times[mode].push((await wait(mode, turn))[figure]);
      }
    }
  };
  const runs = MODES.map(async (mode) => {
    mkdirSync(folderOf(mode));
    const [path, ...args] = launch(
      ...[runtime, ranks, "bench/ranks/watching.ts", mode, model, String(TURNS), folderOf(mode)] as const,
    );
    await runProgram(path, args, runOfItsOwn());
  });
  try {
    await Promise.all([...runs, takeTurns()]);
    return times;
  } finally {
    hasFailed = true;
    // A run that waits for its turn ends when its folder is gone.
    rmSync(root, { recursive: true });
    await Promise.allSettled(runs);
  }
}

/** The subject, with the rounds of each case that its further figures are made of. */
function watching(): Subject {
  const found = new Map<string, Rounds[]>();
  return {
    name: "watching",
    unit: "of a step without",
    higherIsBetter: false,
    isApart: true,
    cases: Object.entries(CASES).map(([name, { target }]) => ({ name, ...target === undefined ? {} : { target } })),
    ours: async (setting, names) => {
      const ratios = new Map<string, number>();
      for (const [name, one] of Object.entries(CASES).filter(([name]) => names.includes(name))) {
        const rounds = await byTurns(setting, one);
        found.set(name, [...found.get(name) ?? [], rounds]);
        const ratio = median(rounds.watched.map((time, i) => time / (rounds.plain[i] ?? NaN)));
        if (ratio !== undefined) ratios.set(name, ratio);
      }
      return ratios;
    },
    more: async (_, name): Promise<Facts> => {
      const all = found.get(name) ?? [];
      const [plain, added] = [
        median(all.flatMap((rounds) => rounds.plain)),
        median(all.flatMap(({ watched, plain }) => watched.map((time, i) => time - (plain[i] ?? NaN)))),
      ];
      return plain === undefined || added === undefined ? {} : { plainMs: plain, addedUs: 1000 * added };
    },
  };
}

/** The ratio of both steps. Both runs write metrics, of which a line takes 4 µs. */
export const WATCHING: Subject = watching();
