/**
 * A run as lines of a terminal: state, numbers, the loss as a curve, memory as bars, ranks, the last warnings.
 *
 * @module
 */
import { formatBytes, shownName } from "../../words.ts";
import type { RecordedRun } from "../read_run.ts";
import { eventsOfType, type RunEvent } from "../run_event.ts";
import type { RunState } from "../run_state.ts";
import { heldOutLosses, type MeasureKey } from "../series.ts";
import { measureText, timeText } from "../words_of_numbers.ts";
import { bar, plotBraille } from "./braille.ts";

/** Words of states. */
const STATES: Readonly<Record<RunState, string>> = {
  running: "running",
  finished: "finished",
  stopped: "stopped",
  failed: "failed",
  silent: "not running",
};

/** Room for labels beside a curve. */
const LABEL = 9;

/** The lines of a screen, none longer than `columns`. */
export function screenOf(
  run: RecordedRun,
  state: RunState,
  { columns, rows }: { readonly columns: number; readonly rows: number },
): readonly string[] {
  const memory = memoryLines(run, columns);
  const ranks = rankLines(run);
  const notes = run.events.flatMap((event) => eventLine(event) ?? []).slice(-4);
  const fixed = 3 + memory.length + ranks.length + notes.length;
  const height = Math.max(3, Math.min(14, rows - fixed - 2));
  return [...headLines(run, state, columns), ...curveLines(run, columns, height), ...memory, ...ranks, ...notes]
    .map((line) => cut(line, columns));
}

/** A line with a mark at its end if it was longer. */
function cut(line: string, columns: number): string {
  const letters = [...line.trimEnd()];
  return letters.length <= columns ? letters.join("") : `${letters.slice(0, columns - 1).join("").trimEnd()}…`;
}

/** As many parts as fit in a line, in their order; the first one always. */
function fitting(parts: readonly string[], columns: number): string {
  return parts.reduce((line, part) => [...line].length + 2 + [...part].length > columns ? line : `${line}  ${part}`);
}

function headLines({ name, record, series }: RecordedRun, state: RunState, columns: number): readonly string[] {
  const total = record?.config["steps"];
  const step = series.steps.at(-1);
  const place = step === undefined
    ? "before its first step"
    : `step ${step}${typeof total === "number" ? `/${total}` : ""}`;
  const size = record === undefined ? [] : [record.world.size === 1 ? "1 rank" : `${record.world.size} ranks`];
  const numbers = numbersOf({ series });
  return [
    fitting([shownName(name, 40), place, STATES[state], ...size], columns),
    numbers.length === 0 ? "" : fitting(numbers, columns),
  ];
}

/** The newest numbers of a run, in words. */
function numbersOf({ series }: Pick<RecordedRun, "series">): readonly string[] {
  const newest = (key: MeasureKey, name: string): string[] => {
    const last = series.last[key];
    return last === undefined ? [] : [`${name} ${measureText(key, last.value)}`.trim()];
  };
  const held = heldOutLosses(series).flatMap((name) => {
    const last = series.last[name];
    return last === undefined ? [] : [`${shownName(name, 30)} ${measureText("loss", last.value)}`];
  });
  return [
    ...newest("loss", "loss"),
    ...held,
    ...newest("grad_norm", "norm"),
    ...newest("learning_rate", "lr"),
    ...newest("tokens_per_second", "tokens/s"),
  ];
}

function curveLines({ series }: RecordedRun, columns: number, height: number): readonly string[] {
  const plot = plotBraille(series.values["loss"] ?? [], Math.max(8, columns - LABEL - 1), height);
  if (plot === undefined) return ["No loss yet"];
  const labels = new Map([[0, plot.top], [plot.lines.length - 1, plot.bottom]]);
  const [first, last] = [String(series.steps[0] ?? ""), String(series.steps.at(-1) ?? "")];
  const gap = Math.max(1, columns - LABEL - 1 - first.length - last.length);
  return [
    ...plot.lines.map((line, i) => {
      const label = labels.get(i);
      return `${(label === undefined ? "" : measureText("loss", label)).padStart(LABEL - 1)} ${line}`;
    }),
    `${"loss".padStart(LABEL - 1)} ${first}${" ".repeat(gap)}${last}`,
  ];
}

function memoryLines({ record, events }: RecordedRun, columns: number): readonly string[] {
  const measured = eventsOfType(events, "memory").at(-1);
  const predicted = record?.predicted;
  if (measured === undefined && predicted === undefined) return [];
  const source = measured ?? predicted;
  const terms = Object.entries(source?.terms ?? {}).filter(([, bytes]) => bytes > 0);
  const whole = Math.max(1, source?.peakBytes ?? 0);
  const width = Math.max(5, Math.min(30, columns - 52));
  const line = (owner: string, bytes: number, expected: number | undefined): string => {
    const beside = expected === undefined || measured === undefined ? "" : `  predicted ${formatBytes(expected)}`;
    const text = `${owner.padEnd(16)} ${bar(bytes, whole, width)} ${formatBytes(bytes).padStart(10)}`;
    return text.length + beside.length > columns ? text : `${text}${beside}`;
  };
  return [
    `Peak memory of rank 0, ${measured === undefined ? "predicted" : `to step ${measured.step}`}`,
    line("all", source?.peakBytes ?? 0, predicted?.peakBytes),
    ...terms.map(([owner, bytes]) => line(owner, bytes, predicted?.terms[owner])),
  ];
}

/** Ranks as the control plane knew them when a rank was last late. */
function rankLines({ events }: RecordedRun): readonly string[] {
  const newest = eventsOfType(events, "ranks").at(-1);
  if (newest === undefined) return [];
  return [
    `Ranks when one was late, ${timeText(newest.time)}`,
    ...newest.ranks.map(({ rank, state, call, step }) =>
      `rank ${rank} ${state} ${state === "waiting" ? "in" : "after"} ${call === null ? "no call" : shownName(call)}${
        step === null ? "" : `, step ${step}`
      }`
    ),
  ];
}

/** A warning, error, save or end as a line; undefined for other events. */
export function eventLine(event: RunEvent): string | undefined {
  switch (event.type) {
    case "log":
      return `${event.level}  ${event.rank === null ? "" : `[rank ${event.rank}] `}${shownName(event.text, 400)}`;
    case "saved":
      return `saved ${shownName(event.path)}`;
    case "end":
      return `${event.outcome} at step ${event.step}`;
    default:
      return undefined;
  }
}

/** A step as a line, for output that is no terminal. */
export function stepLine({ series }: Pick<RecordedRun, "series">, place: number): string {
  const names = ["loss", ...heldOutLosses(series), "grad_norm", "learning_rate", "tokens_per_second"];
  const numbers = names.flatMap((name) => {
    const value = series.values[name]?.[place];
    if (value === null || value === undefined) return [];
    const key = name === "learning_rate" || name === "tokens_per_second" ? name : "loss";
    return [`${shownName(name, 30)} ${measureText(key, value)}`];
  });
  return [`step ${series.steps[place]}`, ...numbers].join("  ");
}
