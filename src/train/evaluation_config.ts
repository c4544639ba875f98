/**
 * The keys of evaluations: when the model is measured on held-out data, and what follows from the figures.
 *
 * @module
 */
import { needs } from "../config/needs.ts";
import * as z from "zod";
import { type Section, section } from "../config/section.ts";
import { weightedInputs } from "../data/mixture.ts";
import { ConfigError, type ConfigProblem } from "../errors.ts";
import { count, size } from "./config_values.ts";
import { heldOutSets } from "./held_out.ts";

/** Times of evaluations, by the Trainer's names. */
const EVAL_STRATEGIES = ["no", "steps", "epoch"] as const;

/**
 * Evaluations and what they decide.
 *
 * @internal
 */
export interface EvaluationConfig {
  readonly evalEvery: number;
  /** Default: `steps` with `evalEvery`, else after the last step alone. */
  readonly evalStrategy?: typeof EVAL_STRATEGIES[number] | undefined;
  readonly loadBestModelAtEnd: boolean;
  readonly metricForBestModel?: string | undefined;
  readonly greaterIsBetter?: boolean | undefined;
  readonly earlyStoppingPatience?: number | undefined;
  readonly earlyStoppingThreshold: number;
}

/** Evaluation keys. */
export const evaluationSection: Section<EvaluationConfig> = section(
  "evaluation",
  z.strictObject({
    evalEvery: count.default(0).describe(
      "Evaluate on evalData every n steps; 0 evaluates after the last step only",
    ).meta({ otherNames: ["eval-steps", "eval-interval", "steps-per-eval"] }),
    evalStrategy: z.enum(EVAL_STRATEGIES).optional().describe(
      "When to evaluate: no: never; steps: as evalEvery says; epoch: after each; always after the last step as well " +
        "(default: as evalEvery says)",
    ).meta({ otherNames: ["evaluation-strategy"] }),
    loadBestModelAtEnd: z.boolean().default(false).describe(
      "Save a checkpoint at each new best evaluation, and write the best one as the model",
    ).meta({ otherNames: ["save-best", "keep-best", "load-best"] }),
    metricForBestModel: z.string().min(1).optional().describe(
      "Metric that decides which is best: loss, perplexity, mean_token_accuracy, with preference " +
        "rewards/accuracies, or NAME_loss of the data NAME (default: loss)",
    ).meta({ otherNames: ["best-metric", "monitor"] }),
    greaterIsBetter: z.boolean().optional().describe(
      "Whether more of that metric is better (default: unless its name ends in loss or perplexity)",
    ),
    earlyStoppingPatience: size.optional().describe("Stop after this many evaluations in a row without improvement")
      .meta({ otherNames: ["patience"] }),
    earlyStoppingThreshold: z.number().nonnegative().default(0).describe(
      "With earlyStoppingPatience: by how much an evaluation must be better to count",
    ).meta({ otherNames: ["min-delta"] }),
  }),
);

/** True if a run looks for the best of its evaluations. */
export function seeksBest({ loadBestModelAtEnd, earlyStoppingPatience }: EvaluationConfig): boolean {
  return loadBestModelAtEnd || earlyStoppingPatience !== undefined;
}

/**
 * Refuses evaluations without data, and settings without those that they need.
 *
 * @throws {ConfigError}
 */
export function requireEvaluations(config: EvaluationConfig & { readonly evalData: readonly string[] }): void {
  const { evalData, evalEvery, evalStrategy, earlyStoppingPatience, earlyStoppingThreshold } = config;
  const problems: ConfigProblem[] = [];
  const asked: readonly (readonly [key: string, isAsked: boolean])[] = [
    ["evalEvery", evalEvery > 0],
    ["evalStrategy", evalStrategy === "steps" || evalStrategy === "epoch"],
    ["loadBestModelAtEnd", config.loadBestModelAtEnd],
    ["metricForBestModel", config.metricForBestModel !== undefined],
    ["greaterIsBetter", config.greaterIsBetter !== undefined],
    ["earlyStoppingPatience", earlyStoppingPatience !== undefined],
  ];
  const first = asked.find(([, isAsked]) => isAsked);
  if (evalData.length === 0 && first !== undefined) {
    problems.push({ path: "evalData", expected: `files for ${first[0]} to evaluate on`, got: "nothing" });
  }
  if (evalStrategy === "steps" && evalEvery === 0) {
    problems.push({ path: "evalEvery", expected: "at least 1 with evalStrategy 'steps'", got: "0" });
  }
  if ((evalStrategy === "epoch" || evalStrategy === "no") && evalEvery > 0) {
    problems.push({ path: "evalEvery", expected: `0 with evalStrategy '${evalStrategy}'`, got: String(evalEvery) });
  }
  if (evalStrategy === "no" && seeksBest(config)) {
    const expected = "'steps' or 'epoch', as loadBestModelAtEnd and earlyStoppingPatience compare evaluations";
    problems.push({ path: "evalStrategy", expected, got: "'no'" });
  }
  if (earlyStoppingThreshold > 0 && earlyStoppingPatience === undefined) {
    problems.push(needs("earlyStoppingThreshold", "earlyStoppingPatience", earlyStoppingThreshold));
  }
  problems.push(...weightProblems(evalData, "evalData"));
  if (problems.length > 0) throw new ConfigError(problems);
}

/**
 * Refuses evaluations at the ends of epochs, of data that is streamed.
 *
 * @throws {ConfigError}
 */
export function requireNoEpochs({ evalStrategy }: Pick<EvaluationConfig, "evalStrategy">): void {
  if (evalStrategy !== "epoch") return;
  const expected = "'steps' with data that is streamed, the length of whose epochs is not known";
  throw new ConfigError([{ path: "evalStrategy", expected, got: "'epoch'" }]);
}

/**
 * The weights among data to evaluate on, each of which is a problem.
 *
 * @param evalData paths and patterns, or `name=path`
 * @param path the key that names them
 */
export function weightProblems(evalData: readonly string[], path: string): readonly ConfigProblem[] {
  const expected = "sources without weights, as an evaluation takes each sample once";
  return [...heldOutSets(evalData).values()].flatMap((files) =>
    weightedInputs(files, path).flatMap(({ inputs, weight }) =>
      weight === undefined ? [] : [{ path, expected, got: `a weight behind '${inputs[0]}'` }]
    )
  );
}
