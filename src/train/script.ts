/**
 * A training script: flags in, a run, a sample on the terminal, an exit code out. Errors that a user can fix are reported in
 * their own words; only this library's faults show a stack.
 *
 * @module
 */
import { givenUpSavesEnd } from "../checkpoint/sharded/pending.ts";
import { helpAsked, wrapWords } from "../config/flags.ts";
import { configHelp, resolveWithOrigins } from "../config/resolve.ts";
import { CollectiveError, ConfigError, RendezvousError } from "../errors.ts";
import { type ControlLine, encodeControlLine, failureText } from "../runtime/control_line.ts";
import { processEnvironment } from "../runtime/env.ts";
import { ENV } from "../runtime/variables.ts";
import { filePath } from "../runtime/files.ts";
import { formatLogRecord, Logger, logLevelFrom, type LogSink, standardErrorSink } from "../runtime/log.ts";
import { scriptArguments } from "../runtime/processes.ts";
import { exitCodeOf } from "../runtime/signals.ts";
import { StatusTerminal, terminal } from "../runtime/terminal.ts";
import { type RunConfig, TRAIN_SECTIONS } from "./config.ts";
import { foreignPresets } from "./presets.ts";
import { failureOf, hasLauncher, rankOf, tellFailure } from "./failure.ts";
import { Places } from "../runtime/places.ts";
import type { ProgressOutput } from "./progress.ts";
import { runTraining } from "./trainer.ts";
import type { TrainerOptions } from "./trainer_options.ts";
import { shown } from "../words.ts";

/** A training script. */
export interface TrainingScript {
  /** First line of the help text. @default `train.ts [flags]` */
  readonly usage?: string;
  /** Flags, without program and script. @default this process's */
  readonly argv?: readonly string[];
  /** The model trained from scratch, as a Hugging Face config. Without it `--model` is needed. */
  readonly hfConfig?: Readonly<Record<string, unknown>>;
  /** Text to train on if no `--data` is given. */
  readonly data?: () => readonly string[];
  /** Prompt of the sample if neither `--data` nor `--prompt` is given. @default a beginning of the data */
  readonly prompt?: string;
  /** The tokenizer when neither `--tokenizer` nor `--model` is given. */
  readonly tokenizer?: string | URL;
  /** Transformers' `fsdp`: true, or options such as `full_shard auto_wrap`; the command line wins. */
  readonly fsdp?: boolean | string;
  /** Transformers' `fsdp_config`, or its file; the command line wins. */
  readonly fsdpConfig?: string | Readonly<Record<string, unknown>>;
  /** Called on every rank after each step, and awaited. */
  readonly onStep?: TrainerOptions["onStep"];
  /** Called at steps, evaluations and saves, on every rank, and awaited. */
  readonly callbacks?: TrainerOptions["callbacks"];
  /**
   * In a run that goes on when ranks are lost (`--max-restarts`): lets the processes that are left train again, and keeps a spare one.
   * Callbacks then see steps again in the same process, and code before this call runs in one that has no rank yet. Without it every
   * start is of new processes, which takes some seconds.
   *
   * @default true if there are no callbacks
   */
  readonly staysAfterFailure?: boolean;
}

/** Destinations of a run's output. */
interface ScriptOutput extends ProgressOutput {
  readonly log: LogSink;
  /** Shows lines unchanged, without a rank. */
  plain(text: string): void;
  /** True if ranks leave for others to come in. */
  readonly regroups?: () => boolean;
}

/** Output to the launcher, which owns the terminal and prefixes each line with its rank. */
function launcherOutput(places: Places | undefined): ScriptOutput {
  const { write } = terminal("stdout");
  const control = (line: ControlLine): void => write(`${encodeControlLine(line)}\n`);
  const log = standardErrorSink();
  let regroups = false;
  return {
    log: (record) => log({ ...record, rank: undefined }),
    line: (text) => write(`${text}\n`),
    status: processEnvironment().flag("FULLYSHARD_STATUS") ? (status) => control({ status }) : undefined,
    plain: (plain) => control({ plain }),
    over: () => control({ over: true }),
    elastic: (news) => {
      regroups ||= "regroups" in news;
      if ("stays" in news) {
        if (places === undefined) return;
        places.stays = true;
      }
      control(news);
    },
    regroups: () => regroups,
  };
}

/** Output to this process's own terminal, if there is one. */
function ownOutput(): ScriptOutput {
  const screen = new StatusTerminal();
  const line = (text: string): void => void screen.lines("stdout", [text]);
  return {
    log: (record) => void screen.lines("stderr", [formatLogRecord(record, screen.hasColors("stderr"))]),
    line,
    status: screen.showsStatus ? (text) => screen.status(text) : undefined,
    plain: line,
  };
}

/** Fills in the script's own settings. */
function withDefaults(config: RunConfig, script: TrainingScript): RunConfig {
  const isOwnData = config.data.length > 0;
  const data = isOwnData ? config.data : script.data?.() ?? [];
  const prompt = config.prompt ?? (isOwnData ? undefined : script.prompt);
  const own = script.tokenizer === undefined ? undefined : filePath(script.tokenizer);
  const tokenizer = config.tokenizer ?? (config.model === undefined ? own : undefined);
  return { ...config, data, tokenizer, prompt };
}

/** `--live 8080` as the two flags that it means. */
function withLivePort(argv: readonly string[]): readonly string[] {
  const joined = argv.map((text) => text.replace(/^--live=(?=\d+$)/, "--live-port="));
  return joined.flatMap((text, i) => {
    if (text.startsWith("--live-port=") && argv[i] !== text) return ["--live", text];
    return joined[i - 1] === "--live" && /^\d+$/.test(text) ? [`--live-port=${text}`] : [text];
  });
}

/** Origins of keys, with those that the script has filled in. */
function withOwn(
  set: Readonly<Record<string, string>>,
  before: RunConfig,
  after: RunConfig,
): Readonly<Record<string, string>> {
  const own = ["data", "prompt", "tokenizer"] as const;
  return {
    ...Object.fromEntries(own.filter((key) => before[key] !== after[key]).map((key) => [key, "the script"])),
    ...set,
  };
}

/**
 * Trains as a script's flags say, on this rank. Every flag of `--help` is also a key of a `--config` YAML file.
 *
 * @returns the exit code: 0, 1 after a failure, 2 for wrong settings, 128 + the signal if one stopped it
 * @example
 * ```ts ignore
 * process.exitCode = await runTrainingScript(); // bun train.ts --model path/to/llama --data texts
 * ```
 */
export async function runTrainingScript(script: TrainingScript = {}): Promise<number> {
  const { staysAfterFailure = script.onStep === undefined && (script.callbacks ?? []).length === 0 } = script;
  const environment = processEnvironment();
  const isKept = staysAfterFailure && environment.text("FULLYSHARD_ELASTIC_FOLDER") !== undefined && hasLauncher();
  if (!isKept) return (await trainOnce(script, undefined)).code;
  const places = new Places();
  if (environment.flag("FULLYSHARD_ELASTIC_SPARE") && !await places.next()) return 0;
  for (;;) {
    places.stays = false;
    const { code, leaves } = await trainOnce(script, places);
    if (!leaves || !await places.next()) return code;
  }
}

/** The end of one training. */
interface TrainingEnd {
  readonly code: number;
  /** True if this process can take another place. */
  readonly leaves: boolean;
}

/** Trains in one place. @param places undefined if the process ends with the training */
async function trainOnce(script: TrainingScript, places: Places | undefined): Promise<TrainingEnd> {
  const { usage = "train.ts [flags]", argv = scriptArguments() } = script;
  const isLaunched = hasLauncher();
  const output = isLaunched ? launcherOutput(places) : ownOutput();
  let log = new Logger({ sink: output.log });
  try {
    log = log.withLevel(logLevelFrom(processEnvironment().text("FULLYSHARD_LOG") ?? "info"));
    if (helpAsked(argv)) {
      const width = terminal("stdout").columns();
      const help = await configHelp(TRAIN_SECTIONS, usage, width);
      const variable = wrapWords(`FULLYSHARD_LOG: ${ENV.FULLYSHARD_LOG.meaning}`, width);
      const rank = rankOf();
      if (rank === undefined || rank === 0) output.plain([help, "", ...variable].join("\n"));
      return { code: 0, leaves: false };
    }
    const notices: string[] = [];
    const presets = foreignPresets({ fsdp: script.fsdp, fsdpConfig: script.fsdpConfig }, notices);
    const resolved = await resolveWithOrigins(TRAIN_SECTIONS, { argv: withLivePort(argv), presets });
    const config = withDefaults(resolved.config, script);
    const set = withOwn(resolved.set, resolved.config, config);
    if ((rankOf() ?? 0) === 0) { for (const notice of notices) log.info(notice); }
    const options = { hfConfig: script.hfConfig, set, log, output, onStep: script.onStep, callbacks: script.callbacks };
    const { finished, signal, isMain } = await runTraining(config, options);
    if (isMain && finished?.sample !== undefined) output.line(`Sample:\n${shown(finished.sample)}`);
    return {
      code: signal === undefined ? 0 : exitCodeOf(signal),
      leaves: output.regroups?.() === true && places?.stays === true,
    };
  } catch (error) {
    const failure = failureOf(error);
    const rank = rankOf();
    // The launcher has the reports of all ranks, and names the cause.
    if (isLaunched) tellFailure(failure);
    else (rank === undefined ? log : log.withRank(rank)).error(failureText(failure));
    const isOfOthers = error instanceof CollectiveError || error instanceof RendezvousError;
    // A Worker that still writes a checkpoint holds the folder, which a rank of the next start may take in another process.
    const leaves = isOfOthers && places?.stays === true && await givenUpSavesEnd();
    return { code: error instanceof ConfigError ? 2 : 1, leaves };
  }
}
