/**
 * A step with a live page that is read, a trace and metrics, by one without these, of a Llama of 7.9 M parameters: its time on two
 * ranks, and the processors' time of one rank with its page and reader, which a busy machine changes less.
 *
 * @module
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { launch, runOfItsOwn, runProgram } from "./process.ts";
import { type BenchSetting, linesOf, type Subject } from "./subject.ts";

/** Cases with their ranks, and the figure of a rank that is compared. */
const CASES = {
  "live-trace-metrics": { ranks: 2, figure: "step-ms" },
  "live-trace-metrics-processor-w1": { ranks: 1, figure: "processor-ms" },
} as const;

/** Milliseconds of a step, and microseconds of a line of metrics. */
interface Times {
  readonly step: number;
  readonly line: number;
}

async function times(
  { runtime }: BenchSetting,
  { ranks, figure }: typeof CASES[keyof typeof CASES],
  mode: "watched" | "plain",
): Promise<Times> {
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-watching-`);
  try {
    const [path, ...args] = launch(runtime, ranks, "bench/ranks/watching.ts", mode, folder);
    const { output } = await runProgram(path, args, runOfItsOwn());
    const valueOf = (key: string): number => Number(linesOf(output).find(([word]) => word === key)?.[1]);
    const found = { step: valueOf(figure), line: valueOf("line-us") };
    if (!Number.isFinite(found.step) || !Number.isFinite(found.line)) throw new Error(`no times in: ${output}`);
    return found;
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** The ratio of both steps. A trainer always writes metrics, so what a line takes is subtracted from the step without. */
export const WATCHING: Subject = {
  name: "watching",
  unit: "of a step without",
  higherIsBetter: false,
  isApart: true,
  cases: Object.keys(CASES).map((name) => ({ name, target: 1.02 })),
  ours: async (setting, names) => {
    const ratios = new Map<string, number>();
    for (const [name, one] of Object.entries(CASES).filter(([name]) => names.includes(name))) {
      const [watched, plain] = [await times(setting, one, "watched"), await times(setting, one, "plain")];
      ratios.set(name, watched.step / (plain.step - plain.line / 1000));
    }
    return ratios;
  },
};
