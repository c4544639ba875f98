/**
 * Steps that a device takes by one call: a step like those before it is captured as a graph, collectives included, and then the
 * graph is launched for each step.
 *
 * Note [What a captured step reads anew]: token ids and labels lie in tensors of their own, which are written before a launch; so are
 * the number of the first sample, which dropout counts from, what follows from the number of tokens, and the optimizer's records
 * with its rates. Steps taken by a parameter, from which bias corrections follow, and the loss scale were on the device already.
 * Everything else is as it was captured: sizes, which parameters are trained, addresses. Gradients, loss and norm stay where the
 * graph writes them.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import type { Batch, MicroBatch } from "../data/loader.ts";
import type { Device } from "../device/device.ts";
import type { DeviceGraph, DeviceGraphs, GraphPlan } from "../device/graphs.ts";
import { int32 } from "../dtype.ts";
import { UnsupportedError } from "../errors.ts";
import { unitsOf } from "../fsdp/handle.ts";
import type { RandomSource } from "../random.ts";
import type { Parameter, ParameterStorage } from "../tensor/parameter.ts";
import { scope, untrack } from "../tensor/scope.ts";
import { Tensor } from "../tensor/tensor.ts";
import { backwardAll, countAll, IGNORED_ROW, lossOf, StepFactors } from "./backward.ts";
import { type StepContext, update } from "./step.ts";

/** Steps that are taken as usual before one is captured: the first make states and compile kernels, the last is the rehearsal. */
const WARMUP_STEPS = 3;

/** How many steps of one shape are taken until one is captured, that one included. */
export const STEPS_TO_GRAPH: number = WARMUP_STEPS + 1;

/** What a step gave, on the device; the graph's or the scope's. */
export interface StepTensors {
  /** Mean cross-entropy of the tokens of all ranks. */
  readonly loss: Tensor;
  /** Total norm of the gradients, before they were clipped. */
  readonly norm: Tensor;
}

/** A step's micro-batches, where a graph reads them. */
class StepInputs implements Disposable {
  readonly #device: Device;
  readonly #parts: readonly {
    readonly inputIds: Tensor;
    readonly labels: Tensor;
    readonly random: RandomSource | undefined;
  }[];

  constructor(device: Device, microBatches: readonly MicroBatch[]) {
    this.#device = device;
    this.#parts = microBatches.map(({ batch, seq, random }) => {
      const make = (): Tensor => Tensor.empty(device, [batch, seq], int32, "inputs of a step");
      return { inputIds: make(), labels: make(), random };
    });
  }

  /** Takes the values of a step with micro-batches of the same sizes. */
  write(microBatches: readonly MicroBatch[]): void {
    for (const [i, { inputIds, labels }] of this.#parts.entries()) {
      const part = microBatches[i] ?? IGNORED_ROW;
      inputIds.copyFromHost(Int32Array.from(part.inputIds));
      labels.copyFromHost(Int32Array.from(part.labels));
    }
    const first = firstSampleOf(microBatches);
    if (first !== undefined) this.#device.graphs?.setFirstSample(first);
  }

  /** What runs the forward of each micro-batch. */
  forwards({ model }: StepContext, microBatches: readonly MicroBatch[]): (() => Tensor)[] {
    return this.#parts.map(({ inputIds, labels }, i) => () =>
      lossOf(model, { inputIds, labels, random: microBatches[i]?.random })
    );
  }

  [Symbol.dispose](): void {
    for (const { inputIds, labels } of this.#parts) {
      inputIds.dispose();
      labels.dispose();
    }
  }
}

/** A captured step. */
interface CapturedStep extends StepTensors {
  readonly graph: DeviceGraph;
  /** Where the parameters lay, in order. */
  readonly storages: readonly ParameterStorage[];
  /** Announces its collectives. */
  readonly announce: () => void;
}

/**
 * Takes steps, from the fourth of one shape on by a graph. A step of another shape, or with another model, optimizer, scaler or group,
 * drops the graph, and begins anew; so does one with an optimizer that was disposed meanwhile, or with a model whose parameters lie elsewhere.
 *
 * @example
 * ```ts ignore
 * using graph = new StepGraph(device);
 * const context = { device, group, model, optimizer, maxGradNorm: 1, graph };
 * for (let step = 1; step <= 100; step++) trainStep(context, await loader.next(), step);
 * ```
 */
export class StepGraph implements Disposable {
  readonly #graphs: DeviceGraphs;
  #shape: string | undefined;
  /** What those steps work on. */
  #context: StepContext | undefined;
  /** Steps of that shape. */
  #taken = 0;
  #inputs: StepInputs | undefined;
  #factors: StepFactors | undefined;
  #plan: GraphPlan<unknown> | undefined;
  #captured: CapturedStep | undefined;

  /**
   * Begins without a graph.
   *
   * @throws {UnsupportedError} if the device has no graphs
   */
  constructor({ name, graphs }: Device) {
    if (graphs === undefined) throw new UnsupportedError(`Cannot capture steps on ${name}: only cuda has graphs`);
    this.#graphs = graphs;
  }

  /**
   * Takes a step; what it gave is not computed yet when this returns.
   *
   * @throws {GraphCaptureError} if a step does what cannot be captured
   * @throws {UnsupportedError} if parameters are offloaded, as the host updates them
   */
  take(context: StepContext, { microBatches }: Batch): StepTensors & { readonly tokens: number } {
    const { group, data = group } = context;
    // Found once: looking through a model's modules takes longer than the launch does.
    const parameters = [...context.model.parameters()];
    requireOnDevice(parameters, context.device);
    const { tokens, microBatches: count } = countAll(microBatches, data);
    const parts = Array.from({ length: count }, (_, i) => microBatches[i] ?? IGNORED_ROW);
    const shape = shapeOf(parts, parameters, context);
    // What a forward without a backward has left gathered would be missing in a capture, and grow stale in a launch.
    for (const unit of unitsOf([context.model])) unit.reshard();
    const isOther = shape !== this.#shape || !this.#worksOn(context, parameters);
    const [changed] = group.sum([Number(isOther)], "shape of the step");
    if (changed !== 0) this.#drop();
    this.#shape = shape;
    this.#context = context;
    const inputs = this.#inputs ??= new StepInputs(context.device, parts);
    const factors = this.#factors ??= new StepFactors({ ...context, data });
    inputs.write(parts);
    const work = (): StepTensors => {
      using frame = scope();
      const loss = backwardAll({ ...context, data }, factors, inputs.forwards(context, parts));
      const norm = update(context);
      frame.keep(loss, norm);
      return { loss, norm };
    };
    return factors.within(tokens, () => ({ ...this.#takeBy(work, context, parameters), tokens }));
  }

  /** Drops the graph, and what it reads. */
  [Symbol.dispose](): void {
    this.#drop();
  }

  /** Whether a graph, where there is one, has the addresses of what a step is to work on. */
  #worksOn({ model, optimizer, scaler, group, data }: StepContext, parameters: readonly Parameter[]): boolean {
    const before = this.#context;
    const isSame = before?.model === model && before.optimizer === optimizer && before.scaler === scaler &&
      before.group === group && before.data === data;
    const captured = this.#captured;
    if (!isSame || captured === undefined) return isSame;
    return optimizer.isCaptured && parameters.every(({ storage }, i) => storage === captured.storages[i]);
  }

  #takeBy(
    work: () => StepTensors,
    { device, optimizer, group }: StepContext,
    parameters: readonly Parameter[],
  ): StepTensors {
    this.#taken++;
    if (this.#captured === undefined) optimizer.zeroGrad();
    if (this.#taken < WARMUP_STEPS) return work();
    if (this.#plan === undefined) {
      const rehearsed = this.#graphs.rehearse(work);
      this.#plan = rehearsed;
      return rehearsed.value;
    }
    const step = this.#captured ??= this.#capture(work, this.#plan, group, parameters);
    optimizer.replayStep();
    device.scalars.flush();
    step.announce();
    step.graph.launch();
    return step;
  }

  #capture(
    work: () => StepTensors,
    plan: GraphPlan<unknown>,
    group: ProcessGroup,
    parameters: readonly Parameter[],
  ): CapturedStep {
    const what = "training step";
    const { value, replay } = group.captureCalls(what, () => this.#graphs.capture(`a ${what}`, plan, work));
    const { loss, norm } = value.value;
    untrack(loss);
    untrack(norm);
    const storages = parameters.map(({ storage }) => storage);
    return { loss, norm, graph: value.graph, storages, announce: replay };
  }

  #drop(): void {
    this.#captured?.loss.dispose();
    this.#captured?.norm.dispose();
    this.#captured?.graph[Symbol.dispose]();
    this.#inputs?.[Symbol.dispose]();
    this.#factors?.[Symbol.dispose]();
    this.#captured =
      this.#inputs =
      this.#factors =
      this.#plan =
        undefined;
    this.#taken = 0;
  }
}

/** A graph has no work of the host. */
function requireOnDevice(parameters: readonly Parameter[], device: Device): void {
  for (const { fqn, storage } of parameters) {
    if (storage.flatShard.device === device) continue;
    throw new UnsupportedError(
      `Cannot capture steps on ${device.name}: '${fqn}' is offloaded to ${storage.flatShard.device.name}, and the host updates it there. Train ` +
        "without offload or without graphs",
    );
  }
}

/** What of a step a graph does not read anew, in words. */
function shapeOf(
  parts: readonly MicroBatch[],
  parameters: readonly Parameter[],
  { model, maxGradNorm }: StepContext,
): string {
  const first = firstSampleOf(parts);
  const sizes = parts.map((part) => {
    if (part === IGNORED_ROW) return "nothing";
    const { batch, seq, random } = part;
    return `${batch} x ${seq}, ${random?.seed}, ${random === undefined ? "" : random.firstSample - (first ?? 0)}`;
  });
  const frozen = parameters.filter(({ requiresGrad }) => !requiresGrad).map(({ fqn }) => fqn);
  const evaluated = [...model.namedModules()].filter(([, { training }]) => !training).map(([name]) => `'${name}'`);
  return [maxGradNorm, ...sizes, ...frozen, ...evaluated].join("\n");
}

/** The number of the first sample of a rank's part of a step, where something is drawn. */
function firstSampleOf(parts: readonly MicroBatch[]): number | undefined {
  return parts.find((part) => part !== IGNORED_ROW)?.random?.firstSample;
}
