/**
 * An estimate as lines for people, and as JSON.
 *
 * @module
 */
import type { MemoryTerms } from "../device/allocator.ts";
import type { CollectiveUse } from "../train/dry_run.ts";
import { countOf, formatBytes } from "../words.ts";
import type { EstimateConfig } from "./estimate_config.ts";
import type { Estimate } from "./estimate_of.ts";

/** Tokens of a step on each rank. */
function tokensOf({ batch, microBatches, seq }: EstimateConfig): number {
  return batch * microBatches * seq;
}

function timeLines({ time, config }: Estimate): readonly string[] {
  if (time === undefined) return [];
  const row = (name: string, value: string): string => `  ${name.padEnd(16)}${"".padStart(5)}${value.padStart(12)}`;
  const seconds = (value: number): string => `${value.toPrecision(4)} s`;
  return [
    `Time of a step at ${config.tflops} TFLOP/s and ${config.bandwidth} GB/s`,
    row("compute", seconds(time.compute)),
    row("communication", seconds(time.communication)),
    row("exposed", seconds(time.exposed)),
    row("in all", seconds(time.step)),
    row("tokens a second", `${Math.round(tokensOf(config) / time.step)}`),
  ];
}

/** The object of `--json`, with names as in `metrics.jsonl`. */
export function estimateJson({ config, rank, step, time }: Estimate): object {
  const { peakBytes, terms, offloaded, stateFileBytes, bytesCommunicated, collectives, flops } = step;
  return {
    ...config.ppSize === 1 ? {} : { rank },
    peak_bytes: peakBytes,
    terms: jsonTerms(terms),
    offloaded: { peak_bytes: offloaded.peakBytes, terms: jsonTerms(offloaded.terms) },
    state_file_bytes: stateFileBytes,
    bytes_communicated: bytesCommunicated,
    collectives: collectives.map(({ kind, unit, phase = null, bytes, hosts }) => ({ kind, unit, bytes, hosts, phase })),
    flops,
    ...time === undefined ? {} : {
      step_seconds: time.step,
      compute_seconds: time.compute,
      communication_seconds: time.communication,
      exposed_seconds: time.exposed,
      tokens_per_second_per_rank: tokensOf(config) / time.step,
    },
  };
}

function jsonTerms(terms: MemoryTerms): object {
  return Object.fromEntries(Object.entries(terms).map(([name, bytes]) => [name.replaceAll(" ", "_"), bytes]));
}

/** Lines for people. */
export function estimateLines(estimate: Estimate): readonly string[] {
  const { config, rank, step } = estimate;
  const { strategy, nproc, precision, batch, seq, microBatches } = config;
  const row = (name: string, text: string, count: string = ""): string =>
    `  ${name.padEnd(16)}${count.padStart(5)}${text.padStart(12)}`;
  const kinds = Map.groupBy(step.collectives, ({ kind }) => kind);
  const total = (calls: readonly CollectiveUse[]): number => calls.reduce((sum, { bytes }) => sum + bytes, 0);
  return [
    `${countOf(step.numParameters, "parameter")}, ${strategy.toUpperCase()} over ${
      countOf(nproc, "rank")
    }, ${precision}, ` +
    `a step of ${microBatches} × ${countOf(batch, "sample")} of ${countOf(seq, "token")} a rank`,
    `Memory of rank ${rank} at its peak`,
    ...Object.entries(step.terms).map(([name, bytes]) => row(name, formatBytes(bytes))),
    row("in all", formatBytes(step.peakBytes)),
    ...config.cpuOffload
      ? [
        "Host memory at its peak",
        ...Object.entries(step.offloaded.terms).filter(([, bytes]) => bytes > 0).map(([name, bytes]) =>
          row(name, formatBytes(bytes))
        ),
        row("in all", formatBytes(step.offloaded.peakBytes)),
        ...step.stateFileBytes > 0 ? [row("states in a file", formatBytes(step.stateFileBytes))] : [],
      ]
      : [],
    "Collectives of a step",
    ...Array.from(kinds, ([kind, calls]) => row(kind, formatBytes(total(calls)), `${calls.length} ×`)),
    row("received", formatBytes(step.bytesCommunicated)),
    `Compute   ${(step.flops / 1e12).toPrecision(4)} TFLOP`,
    ...timeLines(estimate),
  ];
}
