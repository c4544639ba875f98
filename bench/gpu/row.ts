/**
 * The report of a run on a card: a line of JSON for each item.
 *
 * @module
 */
import process from "node:process";

/** The outcome of an item: passed, failed, or impossible here, with the reason. */
export type Outcome = "passed" | "failed" | "cannot";

/** A line of an item, without what the whole run adds. */
export interface Row {
  readonly case: string;
  readonly outcome: Outcome;
  /** The reason why it failed or cannot run. */
  readonly reason?: string;
  /** Figures by name; names carry their units. */
  readonly figures?: Readonly<Record<string, number | string>>;
}

/** Prints a line, for the program that began this one. */
export function tell(row: Row): void {
  process.stdout.write(`${JSON.stringify(row)}\n`);
}

/** The lines among what a program printed. */
export function rowsIn(output: string): readonly Row[] {
  const lines = output.split("\n").map((line) => line.replace(/^\[rank\d+\] /, ""));
  return lines.filter((line) => line.startsWith('{"case":')).map((line): Row => JSON.parse(line));
}

/** The line that tells most of a program's or an error's words. */
export function reasonIn(text: string): string {
  const lines = text.trim().split("\n").map((line) => line.trim()).filter((line) => line !== "");
  return lines.find((line) => /(?:^|\s)(?:error|\w*Error): \S/.test(line)) ?? lines.at(-1) ?? "nothing was printed";
}
