/**
 * A model that fits: built without memory, its step estimated, and refused with remedies where a rank has too little memory.
 *
 * @module
 */
import { standInOf, twinOf } from "../comm/data/dry.ts";
import type { Device } from "../device/device.ts";
import { POOL_NAME } from "../device/offload.ts";
import { ConfigError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { adapt } from "./adapter_config.ts";
import { axesOf } from "./axes_config.ts";
import type { RunConfig } from "./config.ts";
import { estimateStep, type StepEstimate } from "./estimate.ts";
import { layoutOf } from "./mesh.ts";
import { openModel } from "./open_model.ts";
import { frozenDtypeOf } from "./parts.ts";
import type { Run } from "./run.ts";
import { type MemoryNeed, outOfMemoryError, worstShortage } from "./shortage.ts";

/** Largest number of ranks that a refusal tries. */
const MOST_RANKS = 1024;

/**
 * Builds the model of a run, without memory, and estimates a step of it. Returns the model if it fits every rank. Collective.
 *
 * @param hfConfig the model to build, if `config.model` names none
 * @throws {OutOfMemoryError} if it cannot fit, before any memory is allocated: with the largest needs, the number of ranks that
 * would be enough, and the number of micro-batches that would
 * @throws {ConfigError} {@link UnsupportedError} as {@link estimateStep}
 */
export async function planModel(
  run: Pick<Run, "device" | "group" | "localWorldSize">,
  config: RunConfig,
  hfConfig: Readonly<Record<string, unknown>> | undefined,
): Promise<{ readonly model: CausalLm; readonly estimate: StepEstimate }> {
  const source = config.model ?? hfConfig;
  if (source === undefined) {
    const expected = "a Hugging Face folder, as the script brings no model of its own";
    throw new ConfigError([{ path: "--model", expected, got: "nothing" }]);
  }
  const { device, group, group: { rank, size }, localWorldSize } = run;
  const { strategy, seed, broadcastFromRank0 } = config;
  const here = { device, worldSize: size, localWorldSize, ...twinOf(group) };
  const estimate = await group.together("estimate a step", () => estimateStep(config, source, { ...here, rank }));
  const shortage = worstShortage(group, needsOf(estimate, device));
  if (shortage === undefined) {
    const adapter = config.adapter === undefined ? {} : { adapter: config.adapter };
    const frozenDtype = frozenDtypeOf(config);
    const model = await openModel(run, source, { seed, broadcastFromRank0, frozenDtype, ...adapter });
    adapt(model, config, typeof source === "string" ? source : undefined);
    return { model, estimate };
  }
  // The numbers of replicas and of parts stay; more ranks share each.
  const { replicas, shards: given, context, expert, tensor, pipeline } = layoutOf(run, config);
  const fixed = replicas * tensor * pipeline;
  const fits = async (shards: number): Promise<boolean> => {
    const worldSize = fixed * shards;
    const globalBatch = config.globalBatch / size * worldSize;
    const sizes = axesOf(config, size) === undefined
      ? { mesh: `${replicas}x${shards}` }
      : { fsdpSize: shards / context };
    const same = { ...config, globalBatch, ...sizes };
    // Ranks of one stage need the same, and stages differ.
    for (let stage = 0; stage < pipeline; stage++) {
      const place = { rank: stage * worldSize / pipeline, worldSize };
      const taken = await estimateStep(same, source, { device, ...place, ...size > 1 ? standInOf(group) : {} });
      if (needsOf(taken, device).some(({ bytes }) => bytes > shortage.capacity)) return false;
    }
    return true;
  };
  const parts = context * expert;
  let shards = parts * 2 ** Math.floor(1 + Math.log2(given / parts));
  while (strategy === "fsdp" && fixed * shards <= MOST_RANKS && !await fits(shards)) shards *= 2;
  const ranks = strategy === "ddp"
    ? "more ranks do not help while each holds all of it: shard it (FSDP)"
    : fixed * shards <= MOST_RANKS
    ? `${fixed * shards} ranks would be enough`
    : "no number of ranks is enough with this batch and sequence";
  const readers = size / (context * tensor * pipeline);
  const samples = config.globalBatch / readers;
  throw await outOfMemoryError({
    ...{ shortage, numParameters: estimate.numParameters, worldSize: size, samples, ranks },
    microBatches: config.microBatches,
    bytesIn: async (parts) => {
      // Gradients add up from the second part on, so further ones need no more.
      const microBatches = Math.min(parts, 3);
      const globalBatch = samples / parts * microBatches * readers;
      const taken = await estimateStep({ ...config, microBatches, globalBatch }, source, {
        ...here,
        rank: shortage.rank,
      });
      return Math.max(...needsOf(taken, device).map(({ bytes }) => bytes));
    },
  });
}

/** The memory that a step needs on a rank's device and in the host memory beside it, which has the same size. */
function needsOf({ highest, peakBytes, terms, offloaded }: StepEstimate, device: Device): readonly MemoryNeed[] {
  const { capacity } = device.allocator.stats;
  return [
    { where: device.name, bytes: highest, peakBytes, terms, capacity },
    { ...offloaded, where: POOL_NAME, bytes: offloaded.peakBytes, capacity },
  ];
}
