/**
 * What a training script is: flags in, a run, a sample on the terminal, an exit code out. Errors that a user can mend are
 * told in their own words; only our own bugs show a stack.
 *
 * @module
 */
import { configHelp, resolveConfig } from "../config/resolve.ts";
import { ConfigError, InternalError } from "../errors.ts";
import { encodeStatus } from "../launch/status.ts";
import { processEnvironment } from "../runtime/env.ts";
import { filePath } from "../runtime/files.ts";
import { Logger, logLevelFrom, standardErrorSink } from "../runtime/log.ts";
import { terminal } from "../runtime/processes.ts";
import { type RunConfig, TRAIN_SECTIONS } from "./config.ts";
import type { ProgressOutput } from "./progress.ts";
import { runTraining } from "./trainer.ts";

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
 * @returns the exit code: 0, 1 after a failure, 2 for wrong flags
 */
export async function runTrainingScript(script: TrainingScript): Promise<number> {
  const level = processEnvironment().text("FULLYSHARD_LOG");
  const log = new Logger({ sink: standardErrorSink(), ...level === undefined ? {} : { level: logLevelFrom(level) } });
  const out = terminal("stdout");
  try {
    if (script.argv.includes("--help") || script.argv.includes("-h")) {
      out.write(`${await configHelp(TRAIN_SECTIONS, script.usage)}\n`);
      return 0;
    }
    const config = withDefaults(await resolveConfig(TRAIN_SECTIONS, { argv: script.argv }), script);
    const { sample, isMain } = await runTraining(config, { hfConfig: script.hfConfig, log, output: progressOutput() });
    if (isMain) out.write(`\n${config.prompt}${sample}\n`);
    return 0;
  } catch (error) {
    log.error(describe(error));
    return error instanceof ConfigError ? 2 : 1;
  }
}

function describe(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  const ours = error instanceof InternalError || error.constructor === TypeError || error.constructor === ReferenceError;
  return ours ? error.stack ?? error.message : `${error.name}: ${error.message}`;
}
