/**
 * What a training script is: flags in, a run, a sample on the terminal, an exit code out. Errors that a user can mend are
 * told in their own words; only our own bugs show a stack.
 *
 * @module
 */
import { helpAsked } from "../config/flags.ts";
import { configHelp, resolveConfig } from "../config/resolve.ts";
import { ConfigError } from "../errors.ts";
import { encodeControlLine } from "../runtime/control_line.ts";
import { processEnvironment } from "../runtime/env.ts";
import { filePath } from "../runtime/files.ts";
import { Logger, logLevelFrom, standardErrorSink } from "../runtime/log.ts";
import { terminal } from "../runtime/processes.ts";
import { exitCodeOf } from "../runtime/signals.ts";
import { type RunConfig, TRAIN_SECTIONS } from "./config.ts";
import { failureOf, hasLauncher, rankOf, tellFailure } from "./failure.ts";
import type { ProgressOutput } from "./progress.ts";
import { runTraining, type TrainerOptions } from "./trainer.ts";

/** A training script. */
export interface TrainingScript {
  /** First line of the help text. */
  readonly usage: string;
  /** Flags, without program and script. */
  readonly argv: readonly string[];
  /** The model trained from scratch, as a Hugging Face config. */
  readonly hfConfig: Readonly<Record<string, unknown>>;
  /** What is trained on when no `--data` is given. */
  readonly data?: () => readonly string[];
  /** What the sample goes on from when neither `--data` nor `--prompt` is given. @default a beginning of the data */
  readonly prompt?: string;
  /** The tokenizer when neither `--tokenizer` nor `--model` is given. */
  readonly tokenizer?: string | URL;
  /** Called on every rank after each step, and awaited. */
  readonly onStep?: TrainerOptions["onStep"];
}

/** Status lines go to the launcher, or are redrawn on a terminal of our own; otherwise there are none. */
function progressOutput(): ProgressOutput {
  const out = terminal("stdout");
  const environment = processEnvironment();
  if (environment.flag("FULLYSHARD_STATUS")) {
    return {
      line: (text) => out.write(`${text}\n`),
      status: (status) => out.write(`${encodeControlLine({ status })}\n`),
    };
  }
  if (!out.isTerminal || environment.flag("CI")) return { line: (text) => out.write(`${text}\n`), status: undefined };
  return {
    line: (text) => out.write(`\r\x1b[K${text}\n`),
    status: (text) => out.write(`\r\x1b[K${text.slice(0, out.columns() - 1)}`),
  };
}

/** Fills in what the script itself provides. */
function withDefaults(config: RunConfig, script: TrainingScript): RunConfig {
  const isOwnData = config.data.length > 0;
  const data = isOwnData ? config.data : script.data?.() ?? [];
  const prompt = config.prompt ?? (isOwnData ? undefined : script.prompt);
  const own = script.tokenizer === undefined ? undefined : filePath(script.tokenizer);
  const tokenizer = config.tokenizer ?? (config.model === undefined ? own : undefined);
  return { ...config, data, tokenizer, prompt };
}

/**
 * Runs a training script on this rank.
 *
 * @returns the exit code: 0, 1 after a failure, 2 for wrong settings, 128 + the signal if one stopped it
 */
export async function runTrainingScript(script: TrainingScript): Promise<number> {
  const out = terminal("stdout");
  const isPrefixed = hasLauncher();
  const sink = standardErrorSink();
  // The launcher says which rank a line is from.
  let log = new Logger({ sink: isPrefixed ? (record) => sink({ ...record, rank: undefined }) : sink });
  try {
    log = log.withLevel(logLevelFrom(processEnvironment().text("FULLYSHARD_LOG") ?? "info"));
    if (helpAsked(script.argv)) {
      if (rankOf() === 0) out.write(`${await configHelp(TRAIN_SECTIONS, script.usage)}\n`);
      return 0;
    }
    const config = withDefaults(await resolveConfig(TRAIN_SECTIONS, { argv: script.argv }), script);
    const options = { hfConfig: script.hfConfig, log, output: progressOutput(), onStep: script.onStep };
    const { finished, signal, isMain } = await runTraining(config, options);
    if (isMain && finished?.sample !== undefined) out.write(`Sample:\n${finished.sample}\n`);
    return signal === undefined ? 0 : exitCodeOf(signal);
  } catch (error) {
    const failure = failureOf(error);
    // The launcher knows what all ranks say, and names the cause.
    if (isPrefixed) tellFailure(failure);
    else log.withRank(failure.rank).error(`${failure.name}: ${failure.message}`);
    return error instanceof ConfigError ? 2 : 1;
  }
}
