/**
 * Which of the ranks that failed was the cause, and what is said of a run that failed.
 *
 * @module
 */
import type { FailureRecord } from "../runtime/control_line.ts";

/** How a rank that failed ended. */
export interface RankFailure {
  readonly rank: number;
  /** Its process id; undefined where it never started. */
  readonly pid: number | undefined;
  /** Its exit code, or 128 + the signal. */
  readonly exitCode: number;
  /** How it ended, in words. */
  readonly detail: string;
  /** The last lines of its standard error, complete when the run has ended. */
  readonly lastLines: readonly string[];
  /** What it said itself. */
  readonly record: FailureRecord | undefined;
  /** When it said so, or ended without a word: milliseconds since the epoch. */
  readonly time: number;
}

/** Failures in the order of causes: of themselves before those that followed others, the earlier first. */
export function orderFailures(failures: readonly RankFailure[]): readonly RankFailure[] {
  const follows = ({ record }: RankFailure): number => record?.followed === undefined ? 0 : 1;
  return failures.toSorted((a, b) => follows(a) - follows(b) || a.time - b.time);
}

/**
 * What is said at the end of a run, in lines; none if no rank failed.
 *
 * @param stopped ranks that had to be stopped
 */
export function describeFailures(failures: readonly RankFailure[], stopped: readonly number[]): readonly string[] {
  const lines: string[] = [];
  const say = (text: string): void =>
    void lines.push(...text.split("\n").map((line, i) => i === 0 ? `fullyshard: ${line}` : line));
  const [first, ...others] = orderFailures(failures);
  if (first === undefined) return lines;
  const early = failures.map(({ record }) => record?.followed).find((rank) =>
    rank !== undefined && failures.every((failure) => failure.rank !== rank)
  );
  if (first.record?.followed !== undefined && early !== undefined) {
    say(`rank ${early} ended, without an error of its own, while others awaited it`);
  }
  const text = textOf(first);
  const alike = [first, ...others.filter((other) => other.record !== undefined && textOf(other) === text)];
  const who = alike.length > 1 ? alike.map(({ rank }) => rank).sort((a, b) => a - b).join(", ") : nameOf(first);
  say(alike.length > 1 ? `rank ${who} failed: ${text}` : `rank ${who} failed first: ${text}`);
  const follows = ({ record }: RankFailure): boolean => record?.followed !== undefined;
  // A rank that died without a word is told of by the first that missed it.
  const witness = first.record === undefined ? others.find(follows) : undefined;
  for (const other of others) {
    if (alike.includes(other) || (follows(other) && other !== witness)) continue;
    say(`rank ${nameOf(other)} failed after it: ${textOf(other)}`);
  }
  const followers = others.filter((other) => follows(other) && other !== witness).map(({ rank }) => rank);
  if (followers.length > 0) say(`rank ${followers.sort((a, b) => a - b).join(", ")} ended because of it`);
  if (stopped.length > 0) say(`stopped rank ${stopped.join(", ")}`);
  return lines;
}

function nameOf({ rank, pid }: RankFailure): string {
  return pid === undefined ? String(rank) : `${rank} (pid ${pid})`;
}

/** What a rank said itself, or how it ended with its last words. */
function textOf({ record, detail, lastLines }: RankFailure): string {
  if (record !== undefined) return `${record.name}: ${record.message}`;
  if (lastLines.length === 0) return `it ${detail}`;
  return [`it ${detail}. Its last lines on stderr:`, ...lastLines.map((line) => `    ${line}`)].join("\n");
}
