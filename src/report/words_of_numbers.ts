/**
 * Numbers of a report as text.
 *
 * @module
 */
import { formatBytes } from "../words.ts";
import type { MeasureKey } from "./series.ts";

/** A count with thin groups: `7 900 000`. */
export function groupedCount(count: number): string {
  return String(Math.round(count)).replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
}

/** A number of a measure as text, with its unit where the number alone would not say it. */
export function measureText(key: MeasureKey, value: number): string {
  if (key === "peak_bytes") return formatBytes(value);
  if (key === "tokens_per_second") return groupedCount(value);
  return key === "learning_rate" ? value.toExponential(2) : value.toPrecision(4);
}

/** A date and time of UTC, to the second. */
export function timeText(ms: number): string {
  return Number.isFinite(ms) && Math.abs(ms) < 8.64e15
    ? new Date(ms).toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC")
    : "an unknown time";
}

/** A setting as text. */
export function settingText(value: unknown): string {
  if (value === undefined) return "–";
  return typeof value === "string" ? value : JSON.stringify(value);
}
