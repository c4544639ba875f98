/**
 * Log lines: a level, the rank that speaks, and one sentence. The sink is injected; the library prints nothing by itself. Whether all ranks or only rank 0 says something is the caller's choice, by {@link
 * Logger.once}.
 *
 * Permissions on Deno: none.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import { shown } from "../words.ts";
import { styled, terminal } from "./terminal.ts";

/** Levels, least first. */
export const LOG_LEVELS = ["debug", "info", "warn", "error"] as const;
/** How much a line matters. */
export type LogLevel = typeof LOG_LEVELS[number];

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
  debug(message: string): void {
    this.#write("debug", message);
  }

  /** Writes a line about what was decided or reached. */
  info(message: string): void {
    this.#write("info", message);
  }

  /** Writes a line about something that was done, but not as it was asked for. */
  warn(message: string): void {
    this.#write("warn", message);
  }

  /** Writes a line about what failed. */
  error(message: string): void {
    this.#write("error", message);
  }

  #write(level: LogLevel, message: string): void {
    const { sink, rank, level: least = "info" } = this.#options;
    if (LOG_LEVELS.indexOf(level) < LOG_LEVELS.indexOf(least)) return;
    sink({ time: Date.now(), level, rank, message });
  }
}

/** A sink that writes each line as text to standard error. */
export function standardErrorSink(): LogSink {
  const { write, hasColors } = terminal("stderr");
  return (record) => write(`${formatLogRecord(record, hasColors)}\n`);
}

/** Style of each level on a terminal: colors are for what a person should not overlook. */
const STYLES = { debug: "dim", info: "dim", warn: "yellow", error: "red" } as const;

/** A line as text: `warn  [rank 1] Peer is late`; with its level in color if asked for. */
export function formatLogRecord({ level, rank, message }: LogRecord, hasColors = false): string {
  const speaker = rank === undefined ? "" : `[rank ${rank}] `;
  // A line is a line: a message with breaks in it (an error's list of paths) is indented under its first.
  const text = shown(message).replaceAll("\n", "\n      ");
  return `${styled(STYLES[level], level.padEnd(5), hasColors)} ${speaker}${text}`;
}

/** The level of a name, e.g. of FULLYSHARD_LOG. @throws {ArgumentError} if there is none of that name */
export function logLevelFrom(name: string): LogLevel {
  const found = LOG_LEVELS.find((level) => level === name.toLowerCase());
  if (found !== undefined) return found;
  throw new ArgumentError(`Cannot log at level '${name}' as the levels are ${LOG_LEVELS.join(", ")}`);
}
