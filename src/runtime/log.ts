/**
 * Log lines: a level, the rank, and one sentence. The sink is injected; the library prints nothing by itself. Callers choose by
 * {@link Logger.once} if all ranks or only rank 0 writes a line.
 *
 * Permissions on Deno: none.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import { shown } from "../words.ts";
import { styled, terminal } from "./terminal.ts";

/** Levels, the least important first. */
export const LOG_LEVELS = ["debug", "info", "warn", "error"] as const;
/** Importance of a line. */
export type LogLevel = typeof LOG_LEVELS[number];

/** One line, before it is formatted. */
export interface LogRecord {
  /** Milliseconds since the epoch. */
  readonly time: number;
  /** Importance of the line. */
  readonly level: LogLevel;
  /** The rank that writes it; undefined before it is known. */
  readonly rank: number | undefined;
  /** Text of the line. */
  readonly message: string;
}

/** Receives log records. */
export type LogSink = (record: LogRecord) => void;

/** Options of a logger. */
export interface LoggerOptions {
  /** Receives the lines. */
  readonly sink: LogSink;
  /** Lines below it are dropped. @default `info` */
  readonly level?: LogLevel;
  /** The rank that writes. */
  readonly rank?: number;
  /** Receives the lines too, of every level. @default none */
  readonly also?: LogSink;
}

/** Writes log lines of one rank. */
export class Logger {
  readonly #options: LoggerOptions;

  /** Writes nothing yet. */
  constructor(options: LoggerOptions) {
    this.#options = options;
  }

  /** The same logger, for a rank. */
  withRank(rank: number): Logger {
    return new Logger({ ...this.#options, rank });
  }

  /** The same logger, dropping lines below a level. */
  withLevel(level: LogLevel): Logger {
    return new Logger({ ...this.#options, level });
  }

  /** The same logger, which hands every line to another sink too, whatever its level. */
  also(other: LogSink): Logger {
    return new Logger({ ...this.#options, also: other });
  }

  /** A logger for lines that are equal on all ranks: rank 0 writes them, the others do not. */
  once(): Logger {
    const { rank = 0 } = this.#options;
    return rank === 0 ? this : new Logger({ ...this.#options, sink: () => {}, also: () => {} });
  }

  /** Writes a line for debugging. */
  debug(message: string): void {
    this.#write("debug", message);
  }

  /** Writes a line about a decision or a result. */
  info(message: string): void {
    this.#write("info", message);
  }

  /** Writes a line about an action that was not done as requested. */
  warn(message: string): void {
    this.#write("warn", message);
  }

  /** Writes a line about a failure. */
  error(message: string): void {
    this.#write("error", message);
  }

  #write(level: LogLevel, message: string): void {
    const { sink, also, rank, level: least = "info" } = this.#options;
    also?.({ time: Date.now(), level, rank, message });
    if (LOG_LEVELS.indexOf(level) < LOG_LEVELS.indexOf(least)) return;
    sink({ time: Date.now(), level, rank, message });
  }
}

/** A sink that writes each line as text to standard error. */
export function standardErrorSink(): LogSink {
  const { write, hasColors } = terminal("stderr");
  return (record) => write(`${formatLogRecord(record, hasColors)}\n`);
}

/** Style of each level on a terminal; only warnings and errors are colored. */
const STYLES = { debug: "dim", info: "dim", warn: "yellow", error: "red" } as const;

/** A line as text: `warn  [rank 1] Peer is late`; with its level in color if asked for. */
export function formatLogRecord({ level, rank, message }: LogRecord, hasColors = false): string {
  const speaker = rank === undefined ? "" : `[rank ${rank}] `;
  // A message of several lines (an error's list of paths) is indented under its first.
  const text = shown(message).replaceAll("\n", "\n      ");
  return `${styled(STYLES[level], level.padEnd(5), hasColors)} ${speaker}${text}`;
}

/** The level of a name, e.g. of FULLYSHARD_LOG. @throws {ArgumentError} for an unknown name */
export function logLevelFrom(name: string): LogLevel {
  const found = LOG_LEVELS.find((level) => level === name.toLowerCase());
  if (found !== undefined) return found;
  throw new ArgumentError(`Cannot log at level '${name}' as the levels are ${LOG_LEVELS.join(", ")}`);
}
