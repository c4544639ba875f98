/**
 * Tables of what a step of a rank consists of, for people.
 *
 * @module
 */
import { formatBytes } from "../words.ts";
import type { RankSummary } from "./trace_summary.ts";

/** Seconds as milliseconds. */
export const milliseconds = (seconds: number): string => `${(seconds * 1000).toFixed(2)} ms`;

/** A table of what each unit has part in; none where there are no units. */
export function unitLines({ rank, units }: RankSummary): string[] {
  const rows = units.map(({ unit, forward, backward, wait, communication, bytes }) => [
    unit,
    ...[forward, backward, wait, communication].map(milliseconds),
    formatBytes(Math.round(bytes)),
  ]);
  return tableOf([`Rank ${rank}, a step`, "forward", "backward", "gather wait", "communication", "bytes"], rows);
}

/** A table of kernels; none where none ran. */
export function kernelLines({ rank, kernels }: RankSummary): string[] {
  const rate = (count: number | undefined, seconds: number): string =>
    count === undefined || seconds === 0 ? "-" : (count / seconds / 1e9).toPrecision(4);
  const rows = kernels.map(({ kernel, calls, seconds, flops, bytes }) => [
    kernel,
    calls.toFixed(1),
    milliseconds(seconds),
    rate(flops, seconds),
    rate(bytes, seconds),
  ]);
  return tableOf([`Rank ${rank}, kernels`, "calls", "time", "GFLOP/s", "GB/s"], rows);
}

function tableOf(heads: readonly string[], rows: readonly (readonly string[])[]): string[] {
  if (rows.length === 0) return [];
  const all = [heads, ...rows];
  const width = Math.max(...all.map(([name = ""]) => name.length));
  return all.map(([name = "", ...cells]) =>
    `  ${name.padEnd(width)}${cells.map((cell) => cell.padStart(15)).join("")}`
  );
}
