/**
 * The held-out data of a run: one set, or several with names, each measured by itself.
 *
 * @module
 */
import type { CausalLm } from "../models/causal_lm.ts";
import { pathExists } from "../runtime/files.ts";
import { evaluate, type Evaluation } from "./evaluate.ts";
import type { EvalMetrics } from "./metrics.ts";
import type { Run } from "./run.ts";
import type { TextData } from "./text_data.ts";

/** `name=path`. */
const NAMED = /^([A-Za-z][\w-]*)=(.+)$/s;

/**
 * The files of each set by its name, `""` for what has none. A file that is called `name=path` is one of its own.
 *
 * @param evalData paths and patterns, or `name=path`
 */
export function heldOutSets(evalData: readonly string[]): ReadonlyMap<string, readonly string[]> {
  const sets = new Map<string, string[]>();
  for (const given of evalData) {
    const [, name = "", path = given] = pathExists(given) ? [] : NAMED.exec(given) ?? [];
    const files = sets.get(name);
    if (files === undefined) sets.set(name, [path]);
    else files.push(path);
  }
  return sets;
}

/** Names of the figures of a set, as `metrics.jsonl` has them: the Trainer's `eval_loss`, or `eval_NAME_loss`. */
function namesOf(set: string): Readonly<Record<"loss" | "perplexity" | "accuracy", `eval_${string}`>> {
  const prefix = set === "" ? "" : `${set}_`;
  return {
    loss: `eval_${prefix}loss`,
    perplexity: `eval_${prefix}perplexity`,
    accuracy: `eval_${prefix}mean_token_accuracy`,
  };
}

/** The held-out data of a run, open. */
export class HeldOut implements Disposable {
  readonly #sets: ReadonlyMap<string, TextData>;

  /** @param sets by name; closed with this */
  constructor(sets: ReadonlyMap<string, TextData>) {
    this.#sets = sets;
  }

  /** Names of all figures. */
  get names(): readonly string[] {
    return [...this.#sets.keys()].flatMap((set) => Object.values(namesOf(set)));
  }

  /** True if some set is rows of chats or prompts. */
  get hasRows(): boolean {
    return [...this.#sets.values()].some(({ isRows }) => isRows);
  }

  /** Measures the model on each set. Every rank must call it. Figures that are not finite are left out, with a warning. */
  async evaluate(run: Run, model: CausalLm, warn: (text: string) => void): Promise<EvalMetrics> {
    const metrics: Record<`eval_${string}`, number> = {};
    for (const [set, data] of this.#sets) {
      const evaluation: Evaluation = await evaluate(run, model, data);
      for (const [of, name] of Object.entries(namesOf(set))) {
        const value = Reflect.get(evaluation, of);
        if (typeof value === "number" && Number.isFinite(value)) metrics[name] = value;
        else warn(`'${name}' is ${value}, so it is left out: the model overflows on some of that data`);
      }
    }
    return metrics;
  }

  /** Closes the files of tokens. */
  [Symbol.dispose](): void {
    for (const data of this.#sets.values()) data[Symbol.dispose]();
  }
}
