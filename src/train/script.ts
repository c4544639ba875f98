/**
 * What a training script is: flags in, a run, a sample on the terminal, an exit code out. Errors that a user can mend are
 * told in their own words; only our own bugs show a stack.
 *
 * @module
 */
import { helpAsked } from "../config/flags.ts";
import { configHelp, resolveConfig } from "../config/resolve.ts";
import { CollectiveError, ConfigError, InternalError, NonFiniteError, RendezvousError } from "../errors.ts";
import { systemClock } from "../runtime/clock.ts";
import { encodeStatus } from "../runtime/status.ts";
import { processEnvironment, readRankEnvironment } from "../runtime/env.ts";
import { filePath } from "../runtime/files.ts";
import { Logger, logLevelFrom, standardErrorSink } from "../runtime/log.ts";
import { terminal } from "../runtime/processes.ts";
import { exitCodeOf } from "../runtime/signals.ts";
import { type RunConfig, TRAIN_SECTIONS } from "./config.ts";
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
    return { line: (text) => out.write(`${text}\n`), status: (text) => out.write(`${encodeStatus(text)}\n`) };
  }
  if (!out.isTerminal || environment.flag("CI")) return { line: (text) => out.write(`${text}\n`), status: undefined };
  return {
    line: (text) => out.write(`\r\x1b[K${text}\n`),
    status: (text) => out.write(`\r\x1b[K${text.slice(0, out.columns() - 1)}`),
  };
}

/** The settings; what is wrong with them is wrong on every rank, where a launcher gave all ranks the same flags. */
async function resolveSettings(argv: readonly string[], isLaunched: boolean): Promise<RunConfig> {
  try {
    return await resolveConfig(TRAIN_SECTIONS, { argv });
  } catch (error) {
    throw error instanceof ConfigError ? new ConfigError(error.problems, isLaunched) : error;
  }
}

/** Fills in what the script itself provides. */
function withDefaults(config: RunConfig, script: TrainingScript): RunConfig {
  const data = config.data.length > 0 ? config.data : script.data?.() ?? [];
  const own = script.tokenizer === undefined ? undefined : filePath(script.tokenizer);
  const tokenizer = config.tokenizer ?? (config.model === undefined ? own : undefined);
  return { ...config, data, tokenizer };
}

/**
 * Runs a training script on this rank.
 *
 * @returns the exit code: 0, 1 after a failure, 2 for wrong settings, 128 + the signal if one stopped it
 */
export async function runTrainingScript(script: TrainingScript): Promise<number> {
  const out = terminal("stdout");
  const isPrefixed = processEnvironment().flag("FULLYSHARD_PREFIXED");
  const sink = standardErrorSink();
  // The launcher says which rank a line is from.
  let log = new Logger({ sink: isPrefixed ? (record) => sink({ ...record, rank: undefined }) : sink });
  try {
    log = log.withLevel(logLevelFrom(processEnvironment().text("FULLYSHARD_LOG") ?? "info"));
    if (helpAsked(script.argv)) {
      if (rankOf() === 0) out.write(`${await configHelp(TRAIN_SECTIONS, script.usage)}\n`);
      return 0;
    }
    const config = withDefaults(await resolveSettings(script.argv, isPrefixed), script);
    const options = { hfConfig: script.hfConfig, log, output: progressOutput(), onStep: script.onStep };
    const { finished, signal, isMain } = await runTraining(config, options);
    if (isMain && finished !== undefined) out.write(`Sample:\n${config.prompt}${finished.sample}\n`);
    return signal === undefined ? 0 : exitCodeOf(signal);
  } catch (error) {
    const rank = rankOf();
    const origin = isPrefixed ? originOf(error, rank) : undefined;
    log.withRank(rank).error(origin === undefined ? describe(error) : `Stopped, as rank ${origin} did`);
    // The rank with the cause ends first, so that a launcher names that one and gives its exit code.
    if (origin !== undefined) await systemClock.sleep(lingerMs);
    return error instanceof ConfigError ? 2 : 1;
  }
}

const lingerMs = 400;

/** This rank; 0 also where the environment is what is wrong. */
function rankOf(): number {
  try {
    return readRankEnvironment()?.rank ?? 0;
  } catch {
    return 0;
  }
}

/** The rank that tells the cause: the one that failed, or rank 0 of what all ranks are known to find; not this one. */
function originOf(error: unknown, rank: number): number | undefined {
  if (error instanceof CollectiveError) return error.facts.stoppedBy;
  if (error instanceof RendezvousError) return error.stoppedBy;
  const isShared = (error instanceof ConfigError || error instanceof NonFiniteError) && error.onAllRanks;
  return isShared && rank > 0 ? 0 : undefined;
}

function describe(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const ours = error instanceof InternalError || error.constructor === TypeError ||
    error.constructor === ReferenceError;
  return ours ? error.stack ?? error.message : `${error.name}: ${error.message}`;
}
