/**
 * A step with a live page that is read, a trace and metrics, by one without these: of a Llama of 7.9 M parameters on two ranks.
 *
 * @module
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { launch, runOfItsOwn, runProgram } from "./process.ts";
import { type BenchSetting, linesOf, type Subject } from "./subject.ts";

const name = "live-trace-metrics";

/** Milliseconds of a step, and microseconds of a line of metrics. */
interface Times {
  readonly step: number;
  readonly line: number;
}

async function times({ runtime }: BenchSetting, mode: "watched" | "plain"): Promise<Times> {
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-watching-`);
  try {
    const [path, ...args] = launch(runtime, 2, "bench/ranks/watching.ts", mode, folder);
    const { output } = await runProgram(path, args, runOfItsOwn());
    const valueOf = (key: string): number => Number(linesOf(output).find(([word]) => word === key)?.[1]);
    const found = { step: valueOf("step-ms"), line: valueOf("line-us") };
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
  isApart: false,
  cases: [{ name, target: 1.02 }],
  ours: async (setting) => {
    const [watched, plain] = [await times(setting, "watched"), await times(setting, "plain")];
    return new Map([[name, watched.step / (plain.step - plain.line / 1000)]]);
  },
};
