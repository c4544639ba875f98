/**
 * The story of a run whose ranks change, read from its output: which numbers of ranks took which steps, and when steps came.
 *
 * @module
 */
import { at } from "../../src/at.ts";
import type { Running } from "../../tests/train/runs.ts";

/** One start of ranks. */
export interface Segment {
  readonly ranks: number;
  /** The step after which it began; 0 for none. */
  start: number;
}

/** Steps that one number of ranks took, up to the last one that counts. */
export interface World {
  readonly ranks: number;
  readonly last: number;
}

/** Follows a run. */
export class Story {
  readonly segments: Segment[] = [];
  /** Time of the last line of a step, in milliseconds. */
  steppedAt: number = NaN;
  /** Called at each line of a step. */
  onStep: () => void = () => {};

  constructor({ child }: Running) {
    for (const stream of [child.stdout, child.stderr]) {
      let rest = "";
      stream?.on("data", (text: string) => {
        const lines = (rest + text).split("\n");
        rest = lines.pop() ?? "";
        for (const line of lines) this.#take(line);
      });
    }
  }

  /** The worlds by which a run is resumed by hand to `last`: without those whose steps were lost, neighbours of one size joined. */
  worlds(last: number): readonly World[] {
    const worlds: World[] = [];
    for (const [i, { ranks, start }] of this.segments.entries()) {
      const end = this.segments[i + 1]?.start ?? last;
      // A run that is resumed on as many ranks has the same bits as one that is not.
      if (worlds.at(-1)?.ranks === ranks) worlds.pop();
      if (end > start) worlds.push({ ranks, last: end });
    }
    return worlds;
  }

  #take(line: string): void {
    const ranks = /info +FSDP over (\d+) ranks?/.exec(line)?.[1];
    if (ranks !== undefined) this.segments.push({ ranks: Number(ranks), start: 0 });
    const resumed = /Resumed from memory at step (\d+)/.exec(line)?.[1];
    if (resumed !== undefined) at(this.segments, this.segments.length - 1, "segment").start = Number(resumed);
    if (!/step \d+\/\d+ /.test(line)) return;
    this.steppedAt = performance.now();
    this.onStep();
  }
}
