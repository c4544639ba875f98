/**
 * Log lines: a level, the rank that speaks, one sentence, and facts as `name=value`. The sink is injected; the library
 * prints nothing by itself. Whether all ranks or only rank 0 says something is the caller's choice, by {@link
 * Logger.once}.
 *
 * Permissions on Deno: none.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import { type Clock, systemClock } from "./clock.ts";
import { styled, terminal } from "./terminal.ts";

/** Levels, least first. */
export const LOG_LEVELS = ["debug", "info", "warn", "error"] as const;
/** How much a line matters. */
export type LogLevel = typeof LOG_LEVELS[number];

/** Facts that go with a line. */
export type LogFacts = Readonly<Record<string, string | number | boolean>>;

/** One line, before it is text. */
export interface LogRecord {
  /** Milliseconds since the epoch. */
  readonly time: number;
  /** How much it matters. */
  readonly level: LogLevel;
  /** The rank that speaks; undefined before it is known. */
  readonly rank: number | undefined;
  /** What is said. */
  readonly message: string;
  /** Values that belong to it, by name. */
  readonly facts: LogFacts;
}

/** Where lines go. */
export type LogSink = (record: LogRecord) => void;

/** What a logger is made of. */
export interface LoggerOptions {
  /** Takes the lines. */
  readonly sink: LogSink;
  /** Lines below it are dropped. @default `info` */
  readonly level?: LogLevel;
  /** The rank that speaks. */
  readonly rank?: number;
  /** The clock that tells the time of lines. @default the machine's */
  readonly clock?: Clock;
}

/** Writes log lines of one rank. */
export class Logger {
  readonly #options: LoggerOptions;

  /** Writes nothing yet. */
  constructor(options: LoggerOptions) {
    this.#options = options;
  }

  /** The same logger, speaking as a rank. */
  withRank(rank: number): Logger {
    return new Logger({ ...this.#options, rank });
  }

  /** The same logger, dropping lines below a level. */
  withLevel(level: LogLevel): Logger {
    return new Logger({ ...this.#options, level });
  }

  /** A logger for what is the same on every rank: rank 0 says it, the others keep silent. */
  once(): Logger {
    const { rank = 0 } = this.#options;
    return rank === 0 ? this : new Logger({ ...this.#options, sink: () => {} });
  }

  /** Writes a line for somebody who debugs. */
  debug(message: string, facts: LogFacts = {}): void {
    this.#write("debug", message, facts);
  }

  /** Writes a line about what was decided or reached. */
  info(message: string, facts: LogFacts = {}): void {
    this.#write("info", message, facts);
  }

  /** Writes a line about something that was done, but not as it was asked for. */
  warn(message: string, facts: LogFacts = {}): void {
    this.#write("warn", message, facts);
  }

  /** Writes a line about what failed. */
  error(message: string, facts: LogFacts = {}): void {
    this.#write("error", message, facts);
  }

  #write(level: LogLevel, message: string, facts: LogFacts): void {
    const { sink, rank, level: least = "info", clock = systemClock } = this.#options;
    if (LOG_LEVELS.indexOf(level) < LOG_LEVELS.indexOf(least)) return;
    sink({ time: clock.now(), level, rank, message, facts });
  }
}

/** A sink that writes each line as text to standard error. */
export function standardErrorSink(): LogSink {
  const { write, hasColors } = terminal("stderr");
  return (record) => write(`${formatLogRecord(record, hasColors)}\n`);
}

/** Style of each level on a terminal: colors are for what a person should not overlook. */
const STYLES = { debug: "dim", info: "dim", warn: "yellow", error: "red" } as const;

/** A line as text: `warn  [rank 1] Peer is late seconds=12.5 op="all-gather"`; with its level in color if asked for. */
export function formatLogRecord({ level, rank, message, facts }: LogRecord, hasColors = false): string {
  const speaker = rank === undefined ? "" : `[rank ${rank}] `;
  const list = Object.entries(facts).map(([name, value]) => ` ${name}=${formatFact(value)}`).join("");
  // A line is a line: a message with breaks in it (an error's list of paths) is indented under its first.
  return `${styled(STYLES[level], level.padEnd(5), hasColors)} ${speaker}${
    message.replaceAll("\n", "\n      ")
  }${list}`;
}

/** The level of a name, e.g. of FULLYSHARD_LOG. @throws {ArgumentError} if there is none of that name */
export function logLevelFrom(name: string): LogLevel {
  const found = LOG_LEVELS.find((level) => level === name.toLowerCase());
  if (found !== undefined) return found;
  throw new ArgumentError(`Cannot log at level '${name}' as the levels are ${LOG_LEVELS.join(", ")}`);
}

function formatFact(value: string | number | boolean): string {
  return typeof value === "string" && !/^[\w./:+-]+$/.test(value) ? JSON.stringify(value) : String(value);
}
