/**
 * Runs that learn from answers, which the tests of each objective share: flags, a training in this process, TRL's numbers, and bits that
 * do not depend on how the answers are divided.
 *
 * @module
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { z } from "zod";
import { Logger, resolveConfig, runTraining, TRAIN_SECTIONS } from "../../doors/config.ts";
import { onlyInAll } from "../support/share.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";
import { keepRanks, type KeptRanks } from "./kept_ranks.ts";
import { type Ended, essence, metricLines } from "./runs.ts";

/** Figures by name. */
export const figures: z.ZodRecord<z.ZodString, z.ZodNumber> = z.record(z.string(), z.number());

/** What TRL's trainer measured: of each step, and of the held-out rows at the end. */
export interface Measured {
  readonly losses: readonly number[];
  readonly figures: readonly Readonly<Record<string, number>>[];
  readonly held: Readonly<Record<string, number>>;
}

/** Path of a fixture. */
export function fixture(name: string): string {
  return fileURLToPath(new URL(`../fixtures/${name}`, import.meta.url));
}

/** The JSON of a fixture. */
export function fixtureJson(name: string): unknown {
  return JSON.parse(readFileSync(fixture(name), "utf8"));
}

/** Rows as JSONL. */
export function lines(rows: readonly unknown[]): string {
  return rows.map((row) => `${JSON.stringify(row)}\n`).join("");
}

/** Returns a run that ended well; fails with its output otherwise. */
export function succeeds(ended: Ended): Ended {
  assert.equal(ended.code, 0, ended.stdout + ended.stderr);
  return ended;
}

/** Runs of one objective in a folder of their own. */
export class PreferenceRuns implements Disposable {
  readonly folder: TemporaryDirectory = temporaryDirectory();
  readonly #kept: KeptRanks = keepRanks();
  readonly #preference: string;
  readonly #maxLength: number;

  constructor(preference: string, maxLength: number) {
    this.#preference = preference;
    this.#maxLength = maxLength;
  }

  /** Trains on ranks that are kept. */
  get run(): KeptRanks["run"] {
    return this.#kept.run;
  }

  /** Flags of a run on a file. */
  flagsOn(file: string, out: string, ...more: readonly string[]): readonly string[] {
    const { folder } = this;
    return [
      ...["--preference", this.#preference, "--model", fixture("preference/model"), "--data", file],
      ...["--tokenizer", fixture("chat/bytes"), "--chat-template", fixture("chat/templates/chatml.jinja")],
      ...["--sequence-length", String(this.#maxLength), "--global-batch", "8"],
      ...["--schedule", "constant", "--warmup-steps", "0", "--learning-rate", "0.01", "--weight-decay", "0"],
      ...["--sample-tokens", "0", "--cpu-math", "wasm", "--cache", folder.file("cache")],
      ...["--out", folder.file(out), ...more],
    ];
  }

  /** Runs a training in this process, as one rank; returns the lines of its log. */
  async trains(argv: readonly string[]): Promise<string> {
    const config = await resolveConfig(TRAIN_SECTIONS, { argv });
    const messages: string[] = [];
    const log = new Logger({ sink: ({ message }) => void messages.push(message) });
    await runTraining(config, { log, output: { line: () => undefined, status: undefined } });
    return messages.join("\n");
  }

  /** Fails unless a run's metrics are near to what was measured. */
  requireMeasured(out: string, { losses, figures: ofSteps, held }: Measured): void {
    const found = metricLines(this.folder, out).map((line) => figures.parse(JSON.parse(line)));
    assert.equal(found.length, losses.length);
    for (const [i, line] of found.entries()) {
      near(line["loss"], losses[i], `loss of step ${i + 1}`);
      for (const [figure, value] of Object.entries(ofSteps[i] ?? assert.fail())) {
        near(line[figure], value, `${figure} of step ${i + 1}`);
      }
    }
    for (const [figure, value] of Object.entries(held)) near(found.at(-1)?.[`eval_${figure}`], value, `eval_${figure}`);
  }

  /**
   * Fails unless a run on a file of twelve rows has the same bits sharded, replicated, on one rank, and resumed.
   *
   * @returns the metrics of its steps
   */
  async requireSameBits(file: string): Promise<readonly string[]> {
    const { folder } = this;
    const flags = (out: string, ...more: readonly string[]): readonly string[] =>
      this.flagsOn(file, out, "--steps", "4", "--eval-data", file, "--eval-every", "2", ...more);
    const steps = (out: string): readonly string[] => metricLines(folder, out).map(essence);
    const held = (out: string): unknown => metricLines(folder, out).map((line) => line.replace(/^.*?(?="eval_|$)/, ""));
    succeeds(await this.run(flags("fsdp")));
    const all = steps("fsdp");
    assert.equal(all.length, 4);
    await this.trains(flags("alone", "--micro-batches", "2"));
    assert.deepEqual([steps("alone"), held("alone")], [all, held("fsdp")]);
    for (const strategy of onlyInAll(["ddp"])) {
      succeeds(await this.run(flags("ddp", "--strategy", strategy)));
      assert.deepEqual(steps("ddp"), all);
    }
    // Step 3 is in the middle of an epoch.
    await this.trains(flags("half", "--stop-after", "3", "--micro-batches", "2"));
    await this.trains(flags("half", "--resume", "auto", "--micro-batches", "2"));
    assert.deepEqual(steps("half"), all);
    for (const ranks of onlyInAll([4])) {
      succeeds(await this.run(flags("four"), { ranks }));
      await this.trains(flags("four-alone", "--micro-batches", "4"));
      assert.deepEqual(steps("four"), steps("four-alone"));
    }
    return metricLines(folder, "fsdp");
  }

  /**
   * Fails unless runs on a file have one rank's numbers over axes, within what rounding makes of them.
   *
   * @param meshes flags of axes, each with its number of ranks
   */
  async requireNearOverAxes(
    file: string,
    meshes: readonly (readonly [flags: readonly string[], ranks: number])[],
  ): Promise<void> {
    const { folder } = this;
    const flags = (out: string, ...more: readonly string[]): readonly string[] =>
      this.flagsOn(file, out, "--steps", "3", "--eval-data", file, "--eval-every", "3", ...more);
    const measured = (out: string) =>
      metricLines(folder, out).map((line) => figures.parse(JSON.parse(essence(line).replace(/}?$/, "}"))));
    const held = (out: string) => figures.parse(JSON.parse(metricLines(folder, out).at(-1) ?? ""));
    await this.trains(flags("near-alone", "--micro-batches", "2"));
    for (const [place, [axes, ranks]] of meshes.entries()) {
      const out = `near-${place}`;
      succeeds(await this.run(flags(out, ...axes), { ranks }));
      for (const [i, expected] of measured("near-alone").entries()) {
        const found = measured(out)[i] ?? assert.fail();
        for (const [figure, value] of Object.entries(expected)) {
          close(found[figure], value, `${figure} of step ${i + 1} over ${axes.join(" ")}`);
        }
      }
      const found = held(out);
      for (const [figure, value] of Object.entries(held("near-alone"))) {
        if (figure.startsWith("eval_")) close(found[figure], value, `${figure} over ${axes.join(" ")}`);
      }
    }
  }

  [Symbol.dispose](): void {
    this.#kept[Symbol.dispose]();
    this.folder[Symbol.dispose]();
  }
}

function near(found: number | undefined, expected: number | undefined, what: string): void {
  const difference = Math.abs((found ?? NaN) - (expected ?? NaN));
  assert.ok(difference <= 1e-4 * Math.max(1, Math.abs(expected ?? NaN)), `${what}: ${found}, not ${expected}`);
}

/** Fails unless a number is another one within what some hundred roundings of float32 make of it. */
function close(found: number | undefined, expected: number, what: string): void {
  const difference = Math.abs((found ?? NaN) - expected);
  assert.ok(difference <= 2e-5 * Math.max(1, Math.abs(expected)), `${what}: ${found}, and ${expected} on one rank`);
}
