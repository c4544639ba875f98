/**
 * The order of ranks' failures by cause, and the report of a failed run.
 *
 * @module
 */
import { type FailureRecord, failureText } from "../runtime/control_line.ts";
import { formatLogRecord } from "../runtime/log.ts";
import { styled, unstyled } from "../runtime/terminal.ts";
import { rankList, shown } from "../words.ts";

export interface RankFailure {
  readonly rank: number;
  /** The rank's process id; undefined if it never started. */
  readonly pid: number | undefined;
  /** The rank's exit code, or 128 + the signal. */
  readonly exitCode: number;
  /** The end of the rank, in words. */
  readonly detail: string;
  /** The last lines of its standard error, complete when the run has ended. */
  readonly lastLines: readonly string[];
  /** The rank's own report. */
  readonly record: FailureRecord | undefined;
  /** Time of that report, or of the rank's end without one: milliseconds since the epoch. */
  readonly time: number;
}

/** Orders failures by cause: failures of their own before those that followed others, earlier ones first. */
export function orderFailures(failures: readonly RankFailure[]): readonly RankFailure[] {
  const follows = ({ record }: RankFailure): number => record?.followed === undefined ? 0 : 1;
  return failures.toSorted((a, b) => follows(a) - follows(b) || a.time - b.time);
}

/**
 * The report at the end of a run, in lines; empty if no rank failed. Equal failures of several ranks are reported once.
 *
 * @param stopped ranks that had to be stopped
 * @param isHere true for ranks of this host; the launchers of other hosts report their own
 */
export function describeFailures(
  failures: readonly RankFailure[],
  stopped: readonly number[],
  hasColors = false,
  isHere: (rank: number) => boolean = () => true,
): readonly string[] {
  const [first, ...others] = orderFailures(failures);
  if (first === undefined) return [];
  const alike = (a: RankFailure): readonly RankFailure[] => failures.filter((b) => headOf(b) === headOf(a));
  if (first.record?.name === "ConfigError" && alike(first).length === failures.length && stopped.length === 0) {
    const record = { ...first.record, level: "error", rank: undefined, message: textOf(first), facts: {} } as const;
    return [formatLogRecord(record, hasColors)];
  }
  const lines: string[] = [];
  const speaker = styled("red", "fullyshard:", hasColors);
  const say = (text: string): void => void lines.push(`${speaker} ${text}`);
  const follows = ({ record }: RankFailure): boolean => record?.followed !== undefined;
  const early = failures.map(({ record }) => record?.followed).find((rank) =>
    rank !== undefined && failures.every((failure) => failure.rank !== rank)
  );
  if (follows(first) && early !== undefined) {
    say(
      isHere(early)
        ? `rank ${early} ended, without an error of its own, while others awaited it`
        : `rank ${early}, on another host, failed earlier; see that host's output`,
    );
  }
  const isAlone = failures.length + stopped.length === 1;
  say(`${nameOf(alike(first))} failed${isAlone || alike(first).length > 1 ? "" : " first"}: ${textOf(first)}`);
  // If a rank died without a report, the first rank that missed it is quoted.
  const witness = first.record === undefined ? others.find(follows) : undefined;
  const reported = new Set(alike(first));
  for (const other of others) {
    if (reported.has(other) || (follows(other) && other !== witness)) continue;
    say(`${nameOf(alike(other))} failed after it: ${textOf(other)}`);
    for (const one of alike(other)) reported.add(one);
  }
  const followers = others.filter((other) => !reported.has(other)).map(({ rank }) => rank);
  if (followers.length > 0) say(`${rankList(followers)} ended because of it`);
  if (stopped.length > 0) say(`stopped ${rankList(stopped)}`);
  return lines;
}

/** Ranks with the same failure; a single rank with its process id. */
function nameOf(failures: readonly RankFailure[]): string {
  const [one] = failures;
  const list = rankList(failures.map(({ rank }) => rank));
  return failures.length > 1 || one?.pid === undefined ? list : `${list} (pid ${one.pid})`;
}

/** The text by which failures are compared. */
export function headOf(failure: RankFailure): string {
  const { record } = failure;
  return record === undefined ? textOf(failure) : failureText({ ...record, frames: [] });
}

/** Begin of the line with which Bun or Deno reports an uncaught error. */
const REPORT = /^(error: (Uncaught (\(in promise\) )?)?|(?=[A-Z]\w*Error: ))/;

/** A rank's own report, or its runtime's, or its exit with its last lines. */
function textOf({ record, exitCode, detail, lastLines }: RankFailure): string {
  if (record !== undefined) return shown(failureText(record));
  const words = lastLines.map((line) => shown(unstyled(line)));
  // A runtime exits with code 1 after its report.
  const reported = exitCode === 1 ? words.findLast((line) => REPORT.test(line)) : undefined;
  if (reported !== undefined) return reported.replace(REPORT, "");
  if (lastLines.length === 0) return `it ${detail}`;
  return [`it ${detail}. Its last lines on stderr:`, ...words.slice(-12).map((line) => `    ${line}`)].join("\n");
}
