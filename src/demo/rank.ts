/**
 * A rank of the demo: the trainer's own model, parallelism, optimizer and step, over text in memory, in a Worker of a page or of a
 * runtime.
 *
 * @module
 */
import type { LoopbackWorld } from "../comm/control/workers.ts";
import { openLoopback } from "../comm/data/loopback.ts";
import { DataLoader } from "../data/loader.ts";
import { eosOf, tokensInMemory } from "../data/token_stream.ts";
import { BYTE_TOKENIZER } from "../data/tokenizer.ts";
import type { MemoryTerms } from "../device/allocator.ts";
import { openDevice } from "../device/registry.ts";
import { ConfigError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { shardedModuleOf } from "../fsdp/handle.ts";
import { Logger } from "../runtime/log.ts";
import { Trace, type TraceSink } from "../runtime/trace.ts";
import { generate } from "../train/generate.ts";
import { openModel } from "../train/open_model.ts";
import { optimizerOf } from "../train/optimizer.ts";
import { parallelize } from "../train/parallelize.ts";
import { Run } from "../train/run.ts";
import { type StepContext, trainStep } from "../train/step.ts";
import { traceCalls } from "../train/trace.ts";
import type { DemoStep, DemoUnit, MeasuredMemory } from "./events.ts";
import { traceModules } from "./module_spans.ts";
import { DEMO_MODEL, demoConfig, type DemoSettings } from "./settings.ts";

/** Memory of a rank; pages of it cost nothing until they are touched. */
const MEMORY_BYTES = 2 ** 26;

/** Seconds that a rank may wait for others: a page may hold them for long. */
const PATIENCE_SECONDS = 30 * 24 * 3600;

/** A rank's part in the demo. */
export interface DemoPlace {
  readonly settings: DemoSettings;
  readonly rank: number;
  readonly text: string;
  readonly world: LoopbackWorld;
  /** Receives the rank's trace. @default it has none */
  readonly sink?: TraceSink | undefined;
  /** Names of units by which the trace divides a replicated model. */
  readonly parts?: readonly string[];
}

/** A rank that trains. */
class DemoRank implements AsyncDisposable {
  /** The units of a sharded model, in the order in which a forward reaches them; none of a replicated one. */
  readonly units: readonly DemoUnit[];
  readonly #run: Run;
  readonly #context: StepContext;
  readonly #data: DataLoader;
  readonly #text: string;
  readonly #seed: number;
  #step = 0;

  /** Use {@link openDemoRank}. */
  constructor(run: Run, context: StepContext, data: DataLoader, { text, settings }: DemoPlace) {
    this.#text = text;
    this.#seed = settings.seed;
    this.#run = run;
    this.#context = context;
    this.#data = data;
    this.units = unitsOf(context.model);
  }

  /** Memory in use now, in bytes by kind. */
  get memory(): MemoryTerms {
    return this.#run.device.allocator.terms;
  }

  /** Takes a step with all other ranks. */
  async step(): Promise<DemoStep> {
    const { allocator } = this.#run.device;
    const batch = await this.#data.next();
    this.#step++;
    allocator.resetPeak();
    const { loss, gradNorm, tokens } = trainStep(this.#context, batch, this.#step);
    return { step: this.#step, loss, gradNorm, tokens, rest: allocator.terms, peak: allocator.stats.peakTerms };
  }

  /** Continues the beginning of the text, with all other ranks. */
  sample(maxNewTokens: number): string {
    const { model } = this.#context;
    const prompt = beginningOf(this.#text);
    const ends = { eosId: eosOf(BYTE_TOKENIZER), maxNewTokens };
    const ids = generate(model, BYTE_TOKENIZER.encode(prompt), { ...ends, seed: this.#seed });
    return prompt + BYTE_TOKENIZER.decode(ids);
  }

  /** Leaves the ranks and frees the memory. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.#run[Symbol.asyncDispose]();
  }
}

/**
 * Opens a rank: draws its shards of the model, and its part of the text. Every rank calls it.
 *
 * @throws {ConfigError} if the text is shorter than a sample, or no valid Unicode text
 */
export async function openDemoRank(place: DemoPlace): Promise<DemoRank> {
  const { settings, rank, text, world, sink, parts = [] } = place;
  const config = demoConfig(settings);
  const trace = sink === undefined ? undefined : new Trace({ kernels: false });
  const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: MEMORY_BYTES, trace });
  const group = openLoopback(world, rank, device, {
    timeoutSeconds: PATIENCE_SECONDS,
    reportSeconds: PATIENCE_SECONDS,
  });
  if (sink !== undefined && trace !== undefined) {
    trace.open(sink, { rank, worldSize: settings.ranks, run: "demo" });
    traceCalls(trace, group);
  }
  const run = new Run({ device, group, trace, print: () => {} });
  const log = new Logger({ sink: () => {} });
  const model = await openModel(run, DEMO_MODEL, { seed: config.seed, log });
  parallelize(model, run, config);
  await model.load();
  if (trace !== undefined && settings.strategy === "ddp") traceModules(trace, model, parts);
  const optimizer = optimizerOf(model, config);
  const { maxGradNorm } = config;
  const context = { device, group, data: run.data, model, optimizer, maxGradNorm };
  const { sequenceLength, microBatches, globalBatch, seed } = config;
  const data = new DataLoader({
    ...{ tokens: tokensOf(text, sequenceLength), sequenceLength, seed, microBatches, globalBatch },
    ...{ rank: run.samples.rank, worldSize: run.samples.size },
  });
  return new DemoRank(run, context, data, place);
}

/**
 * Memory under these settings, measured in the second step: the first allocates persistent memory. Every rank calls it.
 */
export async function measureMemory(
  place: DemoPlace,
): Promise<MeasuredMemory & { readonly units: readonly DemoUnit[] }> {
  await using rank = await openDemoRank(place);
  await rank.step();
  const { rest, peak } = await rank.step();
  return { rest, peak, units: rank.units };
}

/** The first words of a text, which the sample continues. */
function beginningOf(text: string): string {
  const words = /^.{1,16}(?=\s)/s.exec(text)?.[0];
  return words ?? text.slice(0, 16).toWellFormed();
}

/** The tokens of a text, as the trainer makes them of a file: its bytes, and the end of the document. */
function tokensOf(text: string, sequenceLength: number): ReturnType<typeof tokensInMemory> {
  const refuse = (expected: string, got: string): ConfigError => new ConfigError([{ path: "text", expected, got }]);
  if (!text.isWellFormed()) throw refuse("valid Unicode text", "half of a surrogate pair in it");
  if (text.includes("\0")) throw refuse("text", "a zero byte, which no text has");
  const ids = Int32Array.from([...BYTE_TOKENIZER.encode(text), eosOf(BYTE_TOKENIZER)]);
  if (ids.length <= sequenceLength) throw refuse(`at least ${sequenceLength} bytes of text`, `${ids.length - 1}`);
  return tokensInMemory(ids, "demo");
}

/** The units of a sharded model, in the order of its forward; none of a replicated one. */
function unitsOf(model: CausalLm): readonly DemoUnit[] {
  const counted = new Set<Parameter>();
  const sizes = (shardedModuleOf(model)?.units() ?? []).toReversed().map(({ name, modules }) => {
    // A unit has the parameters that no unit below it has.
    const own = modules.flatMap((module) => [...module.parameters()]).filter((one) => !counted.has(one));
    for (const parameter of own) counted.add(parameter);
    return { name, numel: own.reduce((sum, { globalShape }) => sum + globalShape.reduce((a, b) => a * b, 1), 0) };
  });
  return sizes.toReversed().filter(({ numel }) => numel > 0);
}
