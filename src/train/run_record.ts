/**
 * The run record of a training: facts that are known before its first step.
 *
 * @module
 */
import { RECORD_VERSION, type RunRecord } from "../report/run_record.ts";
import { originOfElapsed } from "../runtime/clock.ts";
import { coreCount, hostName, platform, runtime } from "../runtime/processes.ts";
import { VERSION } from "../version.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import type { RunConfig } from "./config.ts";
import { describeSharding } from "./describe.ts";
import type { StepEstimate } from "./estimate.ts";
import type { Run } from "./run.ts";
import type { TextData } from "./text_data.ts";

/** Parts of a training that its record tells of. */
export interface RecordedParts {
  readonly config: RunConfig;
  readonly run: Pick<Run, "device" | "group" | "mesh">;
  /** The model, sharded or replicated. */
  readonly model: CausalLm;
  readonly estimate: StepEstimate;
  readonly data: Pick<TextData, "description" | "numSamples">;
  /** The checkpoint that the run went on from, and its step. */
  readonly resumed: string | undefined;
  readonly firstStep: number;
  /** Origins of the keys that were set. */
  readonly set: Readonly<Record<string, string>> | undefined;
}

/** The record of a run; only rank 0 needs it. */
export function recordOf({ config, run, model, estimate, data, resumed, firstStep, set }: RecordedParts): RunRecord {
  const { device, group, mesh } = run;
  const { name: runtimeName, version: runtimeVersion } = runtime();
  const { peakBytes, terms, offloaded, flops, bytesCommunicated, collectives, numParameters } = estimate;
  return {
    version: RECORD_VERSION,
    started: Date.now(),
    origin: originOfElapsed(),
    firstStep,
    resumed: resumed ?? null,
    name: nameOf(config),
    config: Object.fromEntries(Object.entries(config).filter(([, value]) => value !== undefined)),
    set: set ?? null,
    versions: { fullyshard: VERSION, runtime: runtimeName, runtimeVersion },
    environment: {
      host: hostName() ?? null,
      ...platform(),
      cores: coreCount(),
      device: device.name,
      deviceDetail: device.detail,
    },
    world: {
      size: group.size,
      backend: group.kind,
      axes: mesh.axes.map((name) => ({ name, size: mesh.axis(name).size })),
    },
    model: { className: model.constructor.name, numParameters },
    data: {
      description: data.description,
      ...data.numSamples === undefined ? {} : { numSamples: data.numSamples },
    },
    sharding: config.strategy === "fsdp" ? describeSharding(model).units : null,
    predicted: { peakBytes, terms, offloaded, flops, bytesCommunicated, collectives: collectives.length },
  };
}

/** The run's name: its own, else the output folder's. */
export function nameOf({ runName, out }: Pick<RunConfig, "runName" | "out">): string {
  return runName ?? out.split("/").findLast((part) => part !== "") ?? out;
}
