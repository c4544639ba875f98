/**
 * Steps as graphs: one step is captured, with its collectives, and later steps are launches of the graph.
 *
 * Note [Values that each launch reads anew]
 * - Token ids, labels and the starts of documents lie in tensors of their own, which are written before a launch.
 * - So are the number of the first sample, from which dropout counts, the factors that depend on the number of tokens, and the
 *   optimizer's records with its learning rates.
 * - The steps taken by each parameter, which give the bias corrections, and the loss scale are updated on the device.
 *
 * Everything else is as captured: sizes, trained parameters, addresses. Gradients, loss and norm stay where the graph writes
 * them.
 *
 * @module
 */
import { captureCalls } from "../comm/captured_calls.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import type { Batch, MicroBatch } from "../data/micro_batch.ts";
import type { Device } from "../device/device.ts";
import type { DeviceGraph, DeviceGraphs, GraphPlan } from "../device/graphs.ts";
import { UnsupportedError } from "../errors.ts";
import { unitsOf } from "../fsdp/handle.ts";
import type { Parameter } from "../tensor/parameter.ts";
import type { ParameterStorage } from "../tensor/parameter_storage.ts";
import { scope, untrack } from "../tensor/scope.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { backwardAll, countAll, IGNORED_ROW, StepFactors } from "./backward.ts";
import { type StepContext, update } from "./step.ts";
import { firstSampleOf, StepInputs } from "./step_inputs.ts";

/** Steps before a capture: the first make optimizer states and compile kernels, the last is the rehearsal. */
const WARMUP_STEPS = 3;

/** Number of steps of one shape up to and including the captured one. */
export const STEPS_TO_GRAPH: number = WARMUP_STEPS + 1;

/** Results of a step, on the device, owned by the graph or the scope. */
export interface StepTensors {
  /** Mean cross-entropy of the tokens of all ranks. */
  readonly loss: Tensor;
  /** Total norm of the gradients, before they were clipped. */
  readonly norm: Tensor;
}

interface CapturedStep extends StepTensors {
  readonly graph: DeviceGraph;
  /** Storages of the parameters at the capture, in order. */
  readonly storages: readonly ParameterStorage[];
  /** Announces the collectives of the step. */
  readonly announce: () => void;
}

/**
 * Takes steps, from the fourth of one shape on by a graph. The graph is dropped, and the count begins anew,
 * - for a step of another shape, or with another model, optimizer, scaler or group;
 * - if the optimizer was disposed meanwhile, or the parameters' storages have changed.
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
  /** Parts of the counted steps. */
  #context: StepContext | undefined;
  /** Number of steps of that shape. */
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
  constructor({ name, traits: { graphs } }: Device) {
    if (graphs === undefined) throw new UnsupportedError(`Cannot capture steps on ${name}: only cuda has graphs`);
    this.#graphs = graphs;
  }

  /**
   * Takes a step; its results are not computed yet when this returns.
   *
   * @throws {GraphCaptureError} if the step cannot be captured
   * @throws {UnsupportedError} if parameters are offloaded, as the host updates them
   */
  take(context: StepContext, { microBatches }: Batch): StepTensors & { readonly tokens: number } {
    const { group, data = group } = context;
    // Listed once: searching a model's modules takes longer than a launch.
    const parameters = [...context.model.parameters()];
    requireOnDevice(parameters, context.device);
    const { tokens, microBatches: count } = countAll(microBatches, data);
    const parts = Array.from({ length: count }, (_, i) => microBatches[i] ?? IGNORED_ROW);
    const shape = shapeOf(parts, parameters, context);
    // Units that a forward without a backward left gathered would be missing in a capture, and outdated in a launch.
    for (const unit of unitsOf([context.model])) unit.reshard();
    const isOther = shape !== this.#shape || !this.#worksOn(context, parameters);
    const [changed] = group.sum([Number(isOther)], "shape of the step");
    if (changed !== 0) this.#drop();
    this.#shape = shape;
    this.#context = context;
    const inputs = this.#inputs ??= new StepInputs(context, parts);
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

  /** Drops the graph and its inputs. */
  [Symbol.dispose](): void {
    this.#drop();
  }

  /** True if the graph, if there is one, has the addresses of the step's parameters. */
  #worksOn({ model, optimizer, scaler, group, data }: StepContext, parameters: readonly Parameter[]): boolean {
    const before = this.#context;
    const isSame = before?.model === model && before.optimizer === optimizer && before.scaler === scaler &&
      before.group === group && before.data === data;
    const captured = this.#captured;
    if (!isSame || captured === undefined) return isSame;
    return captured.graph.isUsable && parameters.every(({ storage }, i) => storage === captured.storages[i]);
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
    step.graph.prepare();
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
    const { value, replay } = captureCalls(group, what, () => this.#graphs.capture(`a ${what}`, plan, work));
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

/** Refuses offloaded parameters, as a graph does no work on the host. */
function requireOnDevice(parameters: readonly Parameter[], device: Device): void {
  for (const { fqn, storage } of parameters) {
    if (storage.flatShard.device === device) continue;
    throw new UnsupportedError(
      `Cannot capture steps on ${device.name}: '${fqn}' is offloaded to ${storage.flatShard.device.name}, and the host updates it there. Train ` +
        "without offload or without graphs",
    );
  }
}

/** The facts of a step that a graph does not read anew, as text. */
function shapeOf(
  parts: readonly MicroBatch[],
  parameters: readonly Parameter[],
  { model, maxGradNorm }: StepContext,
): string {
  const first = firstSampleOf(parts);
  const sizes = parts.map((part) => {
    if (part === IGNORED_ROW) return "nothing";
    const { batch, seq, random, documentStarts, lengths } = part;
    const given = `${documentStarts === undefined ? "" : "documents"} ${lengths === undefined ? "" : "lengths"}`;
    return `${batch} x ${seq}, ${given}, ${random?.seed}, ${
      random === undefined ? "" : random.firstSample - (first ?? 0)
    }`;
  });
  const frozen = parameters.filter(({ requiresGrad }) => !requiresGrad).map(({ fqn }) => fqn);
  const evaluated = [...model.namedModules()].filter(([, { training }]) => !training).map(([name]) => `'${name}'`);
  return [maxGradNorm, model.neftuneNoiseAlpha, ...sizes, ...frozen, ...evaluated].join("\n");
}
