/**
 * The steps of a run whose ranks changed, taken by hand: resumed from its checkpoints on the same numbers of ranks, one after the other.
 *
 * @module
 */
import * as fs from "node:fs";
import type { TemporaryDirectory } from "../../tests/support/temporary.ts";
import type { KeptRanks } from "../../tests/train/kept_ranks.ts";
import { essence, metricLines } from "../../tests/train/runs.ts";
import type { World } from "./story.ts";

/** A number of steps that no run takes: runs by hand stop before. */
const FAR = "1000000";

/** Takes steps by hand, in processes that are kept from one number of ranks to the next. */
export class ByHand {
  readonly #ranks: KeptRanks;
  readonly #flags: readonly string[];
  readonly #microBatches: Readonly<Record<number, number>>;

  /** @param microBatches of a rank, for each number of ranks */
  constructor(ranks: KeptRanks, flags: readonly string[], microBatches: Readonly<Record<number, number>>) {
    [this.#ranks, this.#flags, this.#microBatches] = [ranks, flags, microBatches];
  }

  /**
   * Takes the steps of some worlds in turn; the last one ends its run, which writes the model.
   *
   * @param out the folder, by default that of the flags
   * @returns what went wrong; undefined for nothing
   */
  async take(worlds: readonly World[], out: string | undefined): Promise<readonly string[] | undefined> {
    const place = out === undefined ? [] : ["--out", out];
    for (const [i, { ranks, last }] of worlds.entries()) {
      const isEnd = i === worlds.length - 1;
      const length = isEnd ? ["--steps", String(last)] : ["--steps", FAR, "--stop-after", String(last)];
      const division = ["--micro-batches", String(this.#microBatches[ranks])];
      const flags = [...this.#flags, ...length, ...place, "--resume", "auto", ...division];
      const { code, stderr } = await this.#ranks.run(flags, { ranks });
      if (code !== 0) return [`the run by hand on ${ranks} ranks to step ${last} ended with ${code}:\n${stderr}`];
    }
    return undefined;
  }
}

/** Tells how metrics and models of a run differ from those by hand; nothing if they are equal to the bit. */
export function differences(folder: TemporaryDirectory, hand: string): readonly string[] {
  const [run, alike] = [metricLines(folder), metricLines(folder, hand)].map((lines) => lines.map(essence));
  const first = run?.findIndex((line, i) => line !== alike?.[i]) ?? 0;
  const model = "model/model.safetensors";
  const [own, other] = [`out/${model}`, `${hand}/${model}`].map((file) => fs.readFileSync(folder.file(file)));
  return [
    ...first < 0 && run?.length === alike?.length
      ? []
      : [`step ${first + 1} differs: ${run?.[first]}, by hand ${alike?.[first]}`],
    ...own !== undefined && other !== undefined && own.equals(other) ? [] : ["the models differ"],
  ];
}

/** E.g. `4 to 12, 3 to 15`. */
export function worldsText(worlds: readonly World[]): string {
  return worlds.map(({ ranks, last }) => `${ranks} to ${last}`).join(", ");
}
