/**
 * The held-out data of a run: one set, or several with names, each measured by itself.
 *
 * @module
 */
import { InternalError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { pathExists } from "../runtime/files.ts";
import { type AnswerTable, measureAnswers } from "./answers.ts";
import { evaluate } from "./evaluate.ts";
import { evaluationMode } from "./evaluation_mode.ts";
import type { EvalMetrics } from "./metrics.ts";
import { figureNames, figuresOfTables } from "./preference_figures.ts";
import { LABELED_FIGURES, labeledFiguresOfTables } from "./labeled_figures.ts";
import { isLabeledLoss, type LabeledLossSettings } from "./labeled_loss.ts";
import { ODDS_RATIO, type PairLossSettings } from "./preference_loss.ts";
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

/** Metrics of a set of text. */
const TEXT_FIGURES = ["loss", "perplexity", "mean_token_accuracy"] as const;

/** The name of a set's metric, as `metrics.jsonl` has it: the Trainer's `eval_loss`, or `eval_NAME_loss`. */
function nameOf(set: string, figure: string): `eval_${string}` {
  return `eval_${set === "" ? "" : `${set}_`}${figure}`;
}

/** The held-out data of a run, open. */
export class HeldOut implements Disposable {
  readonly #sets: ReadonlyMap<string, TextData>;
  readonly #loss: PairLossSettings | LabeledLossSettings | undefined;
  /** The answers of sets of pairs, by the reference. */
  readonly #references = new Map<string, AnswerTable>();

  /**
   * Takes the sets.
   *
   * @param sets by name; closed with this
   * @param loss of pairs. @default the sets are text
   */
  constructor(sets: ReadonlyMap<string, TextData>, loss?: PairLossSettings | LabeledLossSettings) {
    this.#sets = sets;
    this.#loss = loss;
  }

  /** Names of all figures. */
  get names(): readonly string[] {
    const ofAnswers = (loss: PairLossSettings | LabeledLossSettings): readonly string[] =>
      isLabeledLoss(loss) ? LABELED_FIGURES : figureNames(loss);
    const figures = this.#loss === undefined ? TEXT_FIGURES : ["loss", ...ofAnswers(this.#loss)];
    return [...this.#sets.keys()].flatMap((set) => figures.map((figure) => nameOf(set, figure)));
  }

  /** Measures sets of pairs by the reference, before the weights change. Every rank must call it. */
  async measureReference(measure: (data: TextData) => Promise<AnswerTable>): Promise<void> {
    for (const [set, data] of this.#sets) this.#references.set(set, await measure(data));
  }

  /** True if some set is rows of chats or prompts. */
  get hasRows(): boolean {
    return [...this.#sets.values()].some(({ isRows }) => isRows);
  }

  /** Measures the model on each set. Every rank must call it. Metrics that are not finite are left out, with a warning. */
  async evaluate(run: Run, model: CausalLm, warn: (text: string) => void): Promise<EvalMetrics> {
    const metrics: Record<`eval_${string}`, number> = {};
    for (const [set, data] of this.#sets) {
      const figures = this.#loss === undefined
        ? await textFigures(run, model, data)
        : await this.#pairFigures(run, model, set, this.#loss);
      for (const [figure, value] of Object.entries(figures)) {
        const name = nameOf(set, figure);
        if (Number.isFinite(value)) metrics[name] = value;
        else warn(`'${name}' is ${value}, so it is left out: the model overflows on some of that data`);
      }
    }
    return metrics;
  }

  async #pairFigures(
    run: Run,
    model: CausalLm,
    set: string,
    loss: PairLossSettings | LabeledLossSettings,
  ): Promise<Readonly<Record<string, number>>> {
    const [data, reference] = [this.#sets.get(set), this.#references.get(set)];
    const isOdds = loss.lossType === ODDS_RATIO;
    if (data === undefined || (reference === undefined && !isOdds)) {
      throw new InternalError(`set '${set}' has no reference`);
    }
    using _mode = evaluationMode(model);
    const measured = await measureAnswers(run, model, data, isOdds);
    if (isLabeledLoss(loss)) {
      if (reference === undefined) throw new InternalError(`set '${set}' has no reference`);
      const { loss: mean, figures } = labeledFiguresOfTables(measured, reference, loss, model.device.math);
      return { loss: mean, ...figures };
    }
    const { loss: mean, figures } = figuresOfTables(measured, reference, loss, model.device.math);
    return { loss: mean, ...figures };
  }

  /** Closes the files of tokens. */
  [Symbol.dispose](): void {
    for (const data of this.#sets.values()) data[Symbol.dispose]();
  }
}

async function textFigures(
  run: Run,
  model: CausalLm,
  data: TextData,
): Promise<Readonly<Record<typeof TEXT_FIGURES[number], number>>> {
  const { loss, perplexity, accuracy } = await evaluate(run, model, data);
  return { loss, perplexity, mean_token_accuracy: accuracy };
}
