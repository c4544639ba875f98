/**
 * Batches of shuffled samples out of a file of packed tokens, with nothing between them that could hide how long one takes. The peer is
 * PyTorch's DataLoader over the same tokens: `bench/peers/dataloader.py` packs the same files alike, and both sides tell a SHA-256
 * of what they packed.
 *
 * @module
 */
import type { Outcome } from "./figures.ts";
import { rank, runProgram } from "./process.ts";
import { type BenchSetting, linesOf, outcomeOf, type Outcomes, type Side, type Subject } from "./subject.ts";

/** The texts that are packed, as bytes. */
const TEXTS = ["src", "docs"];

/** SHA-256 of the tokens, as our side packed them in this run. */
let packed: string | undefined;

/** The output of one side for some cases, and the tokens that it read. */
export function readSide(
  output: string,
  names: readonly string[],
): { readonly digest: string; readonly outcomes: Outcomes } {
  const digest = linesOf(output).find(([name]) => name === "tokens")?.[1];
  if (digest === undefined) throw new Error("nothing was printed of the tokens that were packed");
  return { digest, outcomes: new Map(names.map((name): [string, Outcome] => [name, outcomeOf(output, name)])) };
}

function side(
  commandOf: (setting: BenchSetting) => readonly [string, ...string[]],
  takes: (digest: string) => void,
): Side {
  return async (setting, names) => {
    const [program, ...args] = commandOf(setting);
    const { output } = await runProgram(program, [...args, TEXTS.join(","), ...names]);
    const { digest, outcomes } = readSide(output, names);
    takes(digest);
    return outcomes;
  };
}

/** Microseconds of a batch. */
export const DATALOADER: Subject = {
  name: "dataloader",
  unit: "us",
  higherIsBetter: false,
  isApart: false,
  cases: ["4x256", "8x1024", "32x1024", "8x8192"].map((name) => ({ name })),
  ours: side(({ runtime }) => rank(runtime, "bench/ranks/dataloader.ts"), (digest) => packed = digest),
  peers: {
    torch: side(({ python }) => [python, "bench/peers/dataloader.py"], (digest) => {
      if (digest !== packed) throw new Error(`PyTorch's side packed other tokens: ${digest}, ours ${packed}`);
    }),
  },
};
