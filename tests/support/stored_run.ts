/**
 * Folders of runs that were never trained: record, metrics, events and traces by hand, with names to order.
 *
 * @module
 */
import { RECORD_VERSION, type RunRecord } from "../../src/report/run_record.ts";
import type { RunEvent } from "../../src/report/run_event.ts";
import type { TemporaryDirectory } from "./temporary.ts";

/** Time of all events: 2026-01-02 03:04:05 UTC. */
export const STARTED: number = Date.UTC(2026, 0, 2, 3, 4, 5);

/** A record of two ranks. */
export function recordLike(changes: Partial<RunRecord> = {}): RunRecord {
  const dtypes = {
    storage: "bfloat16",
    compute: "bfloat16",
    reduce: "float32",
    master: "float32",
    gradient: "float32",
  };
  const unit = { numParameters: 9, numel: 2336, padding: 96, worldSize: 2, replicas: 1, bytesPerRank: 4864, dtypes };
  return {
    version: RECORD_VERSION,
    started: STARTED,
    origin: STARTED,
    firstStep: 0,
    resumed: null,
    name: "tiny",
    config: { steps: 40, learningRate: 0.01, strategy: "fsdp", out: "runs/tiny", seed: 0 },
    set: { steps: "--steps", learningRate: "run.yaml:3:7", out: "--out" },
    versions: { fullyshard: "0.1.0", runtime: "bun", runtimeVersion: "1.4.5" },
    environment: {
      host: "here",
      os: "linux",
      arch: "x64",
      cores: 2,
      device: "cpu:0",
      deviceDetail: "native kernels",
    },
    world: { size: 2, backend: "shm", axes: [{ name: "shard", size: 2 }] },
    model: { className: "LlamaForCausalLm", numParameters: 135_760 },
    data: { description: "215 samples of 16 tokens", numSamples: 215 },
    sharding: [
      { ...unit, name: "LlamaForCausalLm", depth: 0, reshardAfterForward: false },
      { ...unit, name: "model.layers.0", depth: 1, reshardAfterForward: true },
    ],
    predicted: {
      peakBytes: 3 * 2 ** 20,
      terms: { parameters: 2 ** 20, gathered: 2 ** 20, activations: 2 ** 20, snapshot: 0 },
      offloaded: { peakBytes: 0, terms: {} },
      flops: 1.5e7,
      bytesCommunicated: 554_496,
      collectives: 10,
    },
    ...changes,
  };
}

/** The line of a step, with a held-out loss at every fifth. */
export function metricsLine(step: number, factor = 1): string {
  const loss = 2 + 6 * factor / (1 + step / 8);
  const held = step % 5 === 0 ? { eval_loss: loss + 0.1 } : {};
  return JSON.stringify({
    ...{ step, loss, learning_rate: 1e-2 * (1 - step / 80), grad_norm: 1 + Math.sin(step) / 4, ...held },
    ...{ tokens_per_second: 600 + step, wall_time: STARTED / 1000 + step, peak_bytes: 2 ** 21 + step * 2 ** 12 },
  });
}

/** Events of a run that has ended. */
export function eventsLike(texts: { readonly warning: string; readonly sample: string }): readonly RunEvent[] {
  const time = STARTED + 1000;
  return [
    { type: "start", time, step: 0 },
    { type: "log", time, level: "warn", rank: 1, text: texts.warning },
    { type: "saved", time, step: 20, path: "runs/tiny/checkpoint-20" },
    {
      ...{ type: "memory", time, step: 20, peakBytes: 2 ** 21, terms: { parameters: 2 ** 20, gathered: 2 ** 20 } },
      offloaded: { peakBytes: 0, terms: {} },
    },
    { type: "sample", time, step: 40, text: texts.sample },
    { type: "end", time, step: 40, outcome: "finished" },
  ];
}

/** Trace of a rank: three steps of 1000 µs, whose clock is `late` µs behind. */
export function traceLike(rank: number, unit: string, late = 0): string {
  const track = { host: 0, compute: 1, gather: 2, reduce: 3 };
  const event = (ph: string, tid: number, ts: number, more: object = {}): object => ({
    ph,
    pid: rank,
    tid,
    ts,
    ...more,
  });
  const span = (tid: number, begin: number, end: number, cat: string, name: string, args: object): object[] => [
    event("B", tid, begin, { cat, name, args }),
    event("E", tid, end),
  ];
  const events: object[] = [
    { ph: "M", pid: rank, name: "fullyshard", args: { rank, worldSize: 2, run: "one", origin: STARTED + late / 1000 } },
  ];
  for (let step = 1; step <= 3; step++) {
    const at = step * 1000;
    events.push(
      event("B", track.host, at, { cat: "step", name: `step ${step}`, args: { step } }),
      ...span(track.host, at, at + 50, "collective", "exchange token count", {
        ...{ kind: "exchange", unit: "token count", group: "world", sequence: step },
      }),
      ...span(track.gather, at + 50, at + 150, "collective", `gather ${unit}`, { kind: "gather", unit, bytes: 8 }),
      event("B", track.compute, at + 50, { cat: "unit", name: `forward ${unit}`, args: { unit } }),
      ...span(track.compute, at + 60, at + 150, "wait", `gather wait ${unit}`, { unit }),
      {
        ...event("X", track.compute, at + 150, { cat: "kernel", name: "gemm", dur: 100, args: { flops: 1, bytes: 1 } }),
      },
      ...span(track.compute, at + 290, at + 295, "free", `free ${unit}`, { unit }),
      event("E", track.compute, at + 300),
      ...span(track.compute, at + 300, at + 700, "unit", `backward ${unit}`, { unit }),
      ...span(track.reduce, at + 600, at + 800, "collective", `reduce-scatter ${unit}`, {
        kind: "reduce-scatter",
        unit,
      }),
      event("E", track.host, at + 1000),
    );
  }
  return `[\n${events.map((one) => JSON.stringify(one)).join(",\n")}\n]\n`;
}

/** Texts and numbers of a run to write. */
export interface StoredRunOptions {
  readonly record?: Partial<RunRecord>;
  readonly warning?: string;
  readonly sample?: string;
  readonly unit?: string;
  readonly steps?: number;
  readonly factor?: number;
}

/** Writes a run's folder; returns its path. */
export function writeStoredRun(
  folder: TemporaryDirectory,
  name: string,
  { record = {}, warning = "a disk is slow", sample = "once upon", unit = "model.layers.0", steps = 40, factor = 1 }:
    StoredRunOptions = {},
): string {
  const lines = Array.from({ length: steps }, (_, i) => metricsLine(i + 1, factor));
  folder.write(`${name}/metrics.jsonl`, `${lines.join("\n")}\n`);
  folder.write(`${name}/run.json`, JSON.stringify(recordLike({ name, ...record })));
  const events = eventsLike({ warning, sample }).map((event) => `${JSON.stringify(event)}\n`);
  folder.write(`${name}/events.jsonl`, events.join(""));
  for (const rank of [0, 1]) folder.write(`${name}/traces/rank${rank}.json`, traceLike(rank, unit, rank * 40));
  return folder.file(name);
}
