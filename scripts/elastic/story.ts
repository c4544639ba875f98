/**
 * The story of a run whose ranks change, read from its output: which numbers of ranks took which steps, and when steps came.
 *
 * @module
 */
import type { Running } from "../../tests/train/runs.ts";

/** Ranks that were started, and have gone on from a step. */
export interface Segment {
  readonly ranks: number;
  /** The step after which it began; 0 for none. */
  readonly start: number;
}

/** Steps that one number of ranks took, up to the last one that counts. */
export interface World {
  readonly ranks: number;
  readonly last: number;
}

/** A shell's command by which a run writes both streams into one: from two, lines come in any order. */
export const ONE_STREAM = "exec 2>&1";

/** Follows a run whose launchers were started with {@link ONE_STREAM}. */
export class Story {
  readonly segments: Segment[] = [];
  /** Starts of ranks, also of those that ended before they had gone on from anywhere. */
  starts: number = 0;
  /** Ranks of a start that has not gone on yet. */
  #ranks: number | undefined;
  /** The last step that a line told of; 0 for none. */
  lastStep: number = 0;
  /** Time of the last line of a step, in milliseconds. */
  steppedAt: number = NaN;
  /** Called at each line of a step. */
  onStep: () => void = () => {};
  /** Called when ranks are started again. */
  onGoOn: () => void = () => {};

  constructor(...launchers: readonly Pick<Running, "child">[]) {
    for (const launcher of launchers) this.follow(launcher);
  }

  /** Reads one more launcher of the run, such as a host's that comes back. */
  follow({ child }: Pick<Running, "child">): void {
    let rest = "";
    child.stdout?.on("data", (text: string) => {
      const lines = (rest + text).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) this.#take(line);
    });
  }

  /** The worlds by which a run is resumed by hand to `last`: without those whose steps were lost, neighbours of one size joined. */
  worlds(last: number): readonly World[] {
    const worlds: World[] = [];
    for (const [i, { ranks, start }] of this.segments.entries()) {
      const end = this.segments[i + 1]?.start ?? last;
      if (end <= start) continue; // it kept no step
      // A run that is resumed on as many ranks has the same bits as one that is not.
      if (worlds.at(-1)?.ranks === ranks) worlds.pop();
      worlds.push({ ranks, last: end });
    }
    return worlds;
  }

  #take(line: string): void {
    if (/fullyshard: going on with /.test(line)) this.onGoOn();
    const ranks = /info +FSDP over (\d+) ranks?/.exec(line)?.[1];
    if (ranks !== undefined) [this.#ranks, this.starts] = [Number(ranks), this.starts + 1];
    const resumed = /Resumed .*at step (\d+)/.exec(line)?.[1];
    if (resumed !== undefined) this.#goOn(Number(resumed));
    const step = /step (\d+)\/\d+ /.exec(line)?.[1];
    if (step === undefined) return;
    this.#goOn(0); // from nowhere, if nothing was kept
    this.lastStep = Number(step);
    this.steppedAt = performance.now();
    this.onStep();
  }

  #goOn(start: number): void {
    if (this.#ranks !== undefined) this.segments.push({ ranks: this.#ranks, start });
    this.#ranks = undefined;
  }
}
