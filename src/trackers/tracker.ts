/**
 * Trackers: programs and servers that show a run's metrics. `metrics.jsonl` is written in any case; a tracker is beside it, and its
 * faults neither stop a run nor slow it.
 *
 * @module
 */

/** Numbers of one step, by the Trainer's tags: `train/loss`, `eval/loss`. */
export type Scalars = Readonly<Record<string, number>>;

/** Shows the metrics of a run. */
export interface Tracker {
  /** Takes the numbers of a step. Never throws and never waits. */
  log(step: number, scalars: Scalars): void;
  /** Delivers what was taken, and ends the run there as `finished` or `failed`. Never throws; waits a few seconds at most. */
  finish(outcome: "finished" | "failed"): Promise<void>;
}

/** The facts that a tracker receives at its start. */
export interface TrackedRun {
  /** The run's folder. */
  readonly folder: string;
  /** The run's name. */
  readonly name: string;
  /** The step that the run resumed from; 0 for a new one. Numbers of later steps are to be dropped. */
  readonly step: number;
  /** The configuration, as text by key. */
  readonly settings: Readonly<Record<string, string>>;
  /** Takes a line for the log: the tracker's problem. */
  readonly warn: (message: string) => void;
}

/** Names of the numbers of `metrics.jsonl` at trackers; `step` is their x axis. */
const TAGS: Readonly<Record<string, string>> = {
  loss: "train/loss",
  learning_rate: "train/learning_rate",
  grad_norm: "train/grad_norm",
  tokens_per_second: "train/tokens_per_second",
  peak_bytes: "train/peak_bytes",
};

/**
 * The numbers of a line of `metrics.jsonl` by the Trainer's tags: `loss` is `train/loss`, `eval_loss` is `eval/loss`. `step` and
 * `wall_time`, which trackers have of their own, and numbers without a tag are left out.
 *
 * @param metrics a line of `metrics.jsonl`
 */
export function scalarsOf(metrics: Readonly<Record<string, number | undefined>>): Scalars {
  return Object.fromEntries(
    Object.entries(metrics).flatMap(([name, value]) => {
      const tag = TAGS[name] ?? (name.startsWith("eval_") ? name.replace("eval_", "eval/") : ofAnswers(name));
      return tag === undefined || value === undefined ? [] : [[tag, value]];
    }),
  );
}

/** The tag of a figure of preferences, `rewards/margins` or `nll_loss`; undefined for others. */
function ofAnswers(name: string): string | undefined {
  return /^(?:rewards\/|logps\/|log_odds_|nll_loss$)/.test(name) ? `train/${name}` : undefined;
}

/** The end of a warning about a tracker. */
export const METRICS_GO_ON = "Training goes on, and 'metrics.jsonl' has all numbers";
