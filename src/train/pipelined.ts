/**
 * Forward and backward of a step through the stages of a pipeline: each rank computes its stages by the schedule, and after each slot of
 * it ranks exchange what it has made for each other (`src/axes/pipeline_schedule.ts`, Note [Slots]). Each stage adds the gradients of
 * the micro-batches in their order, and a unit of parameters reduces them once, in the last backward that reaches it.
 *
 * @module
 */
import { at } from "../at.ts";
import { noGrad } from "../autograd/mode.ts";
import {
  arrive,
  carriedFrom,
  carriedSpecs,
  depart,
  type Departed,
  requireCarried,
  type RowSizes,
  tensorsOf,
} from "../axes/pipeline_messages.ts";
import { type Pipeline, sharedParameters, stageAt } from "../axes/pipeline.ts";
import { type PipelineSlot, slotsOf, type StageAction } from "../axes/pipeline_schedule.ts";
import type { Transfer } from "../comm/data_plane.ts";
import { copyAcross } from "../device/offload.ts";
import { float32 } from "../dtype.ts";
import { ArgumentError, InternalError } from "../errors.ts";
import type { CausalLm, CausalLmInputs } from "../models/causal_lm.ts";
import type { HeadOutput } from "../nn/head.ts";
import { ModelSection } from "../nn/section.ts";
import type { OutputSpec } from "../ops/op.ts";
import type { GradientSlot } from "../tensor/gradient_slot.ts";
import type { Parameter } from "../tensor/parameter.ts";
import type { GradientReducer } from "../tensor/parameter_storage.ts";
import { scope } from "../tensor/scope.ts";
import { Tensor } from "../tensor/tensor.ts";

/** The inputs of a micro-batch, in device memory. */
type StageInputs = CausalLmInputs & { readonly labels: Tensor };

/** Model, inputs and loss of a step that goes through stages. */
export interface PipelinedParts {
  readonly model: CausalLm;
  readonly pipeline: Pipeline;
  /** Sizes of each micro-batch. */
  readonly shapes: readonly RowSizes[];
  /** Makes the inputs of a micro-batch, in the current scope. */
  readonly inputs: (microBatch: number) => StageInputs;
  /** Scales a part's sum of losses for its backward. */
  readonly scaled: (part: Tensor) => Tensor;
  /** Adds a part's sum of losses to the step's; called on the rank of the last stage. */
  readonly add: (part: Tensor) => void;
}

/** A forward whose backward has not come yet. */
interface Passing {
  /** The backward begins here; undefined where the stage and those before it train nothing. */
  readonly root: Tensor | undefined;
  readonly departed: Departed;
  /** Receive the gradients of what had arrived. */
  readonly slots: readonly GradientSlot[];
}

/** A message of a dense tensor. @param what names it; ranks compare it, dtype and shape */
function transferOf(kind: Transfer["kind"], tensor: Tensor, peer: number, what: string): Transfer {
  const { ptr, numel, dtype, shape } = tensor;
  const tag = `${what}: ${dtype.name} [${shape.join(", ")}]`;
  return { kind, ptr, byteLength: numel * dtype.byteLength, peer, tag };
}

const keyOf = ({ kind, stage, microBatch }: StageAction): string => `${kind} ${stage} ${microBatch}`;

/** Computes a rank's stages of one step. */
class PipelinedStep implements Disposable {
  readonly #parts: PipelinedParts;
  /** Values that have come from other ranks or are to be sent, by the action that made them. */
  readonly #messages = new Map<string, readonly Tensor[]>();
  readonly #passing = new Map<string, Passing>();
  /** The last backward of this rank in which a unit gets gradients. */
  readonly #last: ReadonlyMap<GradientReducer, string>;

  constructor(parts: PipelinedParts, order: readonly StageAction[]) {
    this.#parts = parts;
    const { model, pipeline } = parts;
    const last = new Map<GradientReducer, string>();
    const backwards = order.filter(({ kind, stage }) => kind === "backward" && pipeline.hasGradient(stage));
    for (const parameter of model.parameters()) {
      const { reducer } = parameter.storage;
      if (reducer === undefined || !parameter.requiresGrad) continue;
      const stages = pipeline.stagesOf(parameter);
      const place = backwards.findLastIndex(({ stage }) => stages.includes(stage));
      const before = last.get(reducer);
      const placeBefore = backwards.findIndex((action) => keyOf(action) === before);
      if (place > placeBefore) last.set(reducer, keyOf(at(backwards, place, "backward")));
    }
    this.#last = last;
  }

  /** Computes a slot's action of this rank, and exchanges what all have made. */
  take(slot: PipelineSlot): void {
    const { pipeline: { group } } = this.#parts;
    const own = slot[group.rank];
    if (own !== undefined) {
      if (own.kind === "forward") this.#forward(own);
      else this.#backward(own);
    }
    this.#exchange(slot);
  }

  #forward(action: StageAction): void {
    const { model, pipeline, inputs, scaled, add } = this.#parts;
    const { stage, microBatch } = action;
    using _frame = scope();
    const received = stage === 0 ? [] : this.#takeMessage({ ...action, stage: stage - 1 });
    const arrived = received.map((tensor) => arrive(tensor, pipeline.hasGradient(stage - 1)));
    const carried = stage === 0 ? undefined : carriedFrom(arrived.map(({ tensor }) => tensor));
    const { loss, carried: given } = callSection(model, pipeline, stage, inputs(microBatch), carried);
    for (const tensor of received) tensor.dispose();
    const departed: Departed = { gradients: [] };
    let root: Tensor;
    if (stage === pipeline.stages.length - 1) {
      if (loss === undefined) throw new InternalError("the model gave no loss for labels");
      add(loss);
      root = scaled(loss);
    } else {
      const tensors = this.#requireGiven(action, given);
      root = depart(tensors.filter(({ dtype }) => dtype.kind === "float"), departed);
      this.#messages.set(keyOf(action), tensors.map((tensor) => tensor.contiguous().alias()));
    }
    const slots = arrived.flatMap(({ slot }) => slot ?? []);
    const key = keyOf({ ...action, kind: "backward" });
    this.#passing.set(key, { root: root.requiresGrad ? root.persist() : undefined, departed, slots });
  }

  #requireGiven(action: StageAction, given: HeadOutput["carried"]): readonly Tensor[] {
    if (given === undefined) {
      const { name } = this.#parts.model.constructor;
      throw new ArgumentError(
        `Cannot run ${name} in stages: its forward gives no 'carried' where the inputs ask for a section that is not the last; compute ` +
          "the section's blocks alone, and return what they give as 'carried'",
      );
    }
    const tensors = tensorsOf(given);
    requireCarried(tensors, this.#specsOf(action), action.stage);
    return tensors;
  }

  #backward(action: StageAction): void {
    const { model, pipeline } = this.#parts;
    const key = keyOf(action);
    const passing = this.#passing.get(key);
    if (passing === undefined) throw new InternalError(`no forward before ${key}`);
    this.#passing.delete(key);
    const { root, departed, slots } = passing;
    const hasNext = action.stage < pipeline.stages.length - 1 && pipeline.hasGradient(action.stage);
    departed.gradients = hasNext ? this.#takeMessage({ ...action, stage: action.stage + 1 }) : [];
    try {
      using _frame = scope();
      for (const reducer of reducersOf(model)) reducer.requiresGradientSync = this.#last.get(reducer) === key;
      root?.backward();
      if (action.stage > 0 && pipeline.hasGradient(action.stage - 1)) {
        const specs = this.#specsOf(action).filter(({ dtype }) => dtype.kind === "float");
        this.#messages.set(key, specs.map((spec, i) => gradientOf(slots[i], spec, model)));
      }
    } finally {
      root?.dispose();
      for (const slot of slots) slot.clear();
      for (const tensor of departed.gradients) tensor.dispose();
    }
  }

  /** Sends what this rank has made in a slot, and receives what others have made for it. */
  #exchange(slot: PipelineSlot): void {
    const { model, pipeline, pipeline: { group, stages } } = this.#parts;
    const transfers: Transfer[] = [];
    const [sent, names]: [string[], string[]] = [[], []];
    for (const [rank, action] of slot.entries()) {
      if (action === undefined) continue;
      const { kind, stage } = action;
      const to = kind === "forward" ? stage + 1 : stage - 1;
      const isDropped = kind === "backward" && !pipeline.hasGradient(to);
      if (to < 0 || to === stages.length || isDropped) continue;
      const peer = pipeline.rankOf(to);
      if (rank !== group.rank && peer !== group.rank) continue;
      const name = `${kind === "forward" ? "activations" : "gradients"} of stage ${stage}`;
      names.push(name);
      const key = keyOf(action);
      const what = `${name}, micro-batch ${action.microBatch}`;
      if (rank === group.rank) {
        for (const tensor of this.#messages.get(key) ?? []) transfers.push(transferOf("send", tensor, peer, what));
        sent.push(key);
        continue;
      }
      const specs = this.#specsOf(action).filter(({ dtype }) => kind === "forward" || dtype.kind === "float");
      const tensors = specs.map(({ shape, dtype }) => Tensor.empty(model.device, shape, dtype, "messages of stages"));
      this.#messages.set(key, tensors);
      for (const tensor of tensors) transfers.push(transferOf("receive", tensor, rank, what));
    }
    if (transfers.length > 0) group.transfer(transfers, names.join(", ")).wait();
    for (const key of sent) for (const tensor of this.#takeMessageOf(key)) tensor.dispose();
  }

  /** The values that an action sends: those that its blocks hand on, in a forward; the gradients of its blocks' inputs, in a backward. */
  #specsOf({ kind, stage, microBatch }: StageAction): readonly OutputSpec[] {
    const { model, pipeline, shapes } = this.#parts;
    const { begin, end } = stageAt(pipeline, stage);
    const rows = at(shapes, microBatch, "micro-batch");
    return carriedSpecs(model, kind === "forward" ? end : begin, rows, pipeline.dtype);
  }

  #takeMessage(action: StageAction): readonly Tensor[] {
    return this.#takeMessageOf(keyOf(action));
  }

  #takeMessageOf(key: string): readonly Tensor[] {
    const tensors = this.#messages.get(key);
    if (tensors === undefined) throw new InternalError(`nothing has come of ${key}`);
    this.#messages.delete(key);
    return tensors;
  }

  /** Frees what a step that failed has left. */
  [Symbol.dispose](): void {
    for (const tensors of this.#messages.values()) for (const tensor of tensors) tensor.dispose();
    for (const { root, slots } of this.#passing.values()) {
      root?.dispose();
      for (const slot of slots) slot.clear();
    }
    this.#messages.clear();
    this.#passing.clear();
  }
}

function reducersOf(model: CausalLm): ReadonlySet<GradientReducer> {
  return new Set([...model.parameters()].flatMap(({ storage }) => storage.reducer ?? []));
}

/** The gradient that goes back to the stage before, in memory of its own; zeros where nothing has reached it. */
function gradientOf(slot: GradientSlot | undefined, { shape, dtype }: OutputSpec, { device }: CausalLm): Tensor {
  const gradient = slot?.gradient();
  if (gradient !== undefined) return gradient.contiguous().alias();
  const zeros = Tensor.empty(device, shape, dtype, "messages of stages");
  device.kernels.fill({ dtype, n: zeros.numel, value: 0, dst: zeros.ptr });
  return zeros;
}

/** Calls a model's forward for the blocks of a stage. */
function callSection(
  model: CausalLm,
  pipeline: Pipeline,
  stage: number,
  inputs: CausalLmInputs,
  carried: HeadOutput["carried"],
): HeadOutput {
  const { begin, end } = stageAt(pipeline, stage);
  return model.call({ ...inputs, section: new ModelSection(begin, end, carried) });
}

/**
 * Forward and backward of all micro-batches through all stages. Every rank of the pipeline calls it.
 *
 * @throws {ArgumentError} for numbers of micro-batches that the schedule has no order for, and for hooks on gradients of parameters that
 * several stages keep
 */
export function backwardThroughStages(parts: PipelinedParts): void {
  const { pipeline: { schedule, stagesPerRank, group }, shapes, model } = parts;
  requireNoSharedHooks(model);
  const sizes = { ranks: group.size, stagesPerRank, microBatches: shapes.length };
  const slots = slotsOf(schedule, sizes);
  using step = new PipelinedStep(parts, slots.flatMap((slot) => slot[group.rank] ?? []));
  for (const slot of slots) step.take(slot);
  addSharedGradients(model);
}

/** Refuses hooks that would see one stage's part of a gradient: stages add theirs when all backwards have ended. */
function requireNoSharedHooks(model: CausalLm): void {
  for (const { fqn, owners, isHooked } of model.parameters()) {
    if (!isHooked || owners === undefined || owners.places.length === 1) continue;
    throw new ArgumentError(
      `Cannot run a backward in stages: a hook on the gradient of '${fqn}' would see one stage's part of it, as several stages keep it; ` +
        "remove the hook, or leave the weight untied",
    );
  }
}

/**
 * Adds the gradients of parameters that several stages keep, in the order of the stages, so that all get the same bits.
 */
function addSharedGradients(model: CausalLm): void {
  const { pipeline } = model;
  if (pipeline === undefined) return;
  for (const parameter of sharedParameters(model)) if (parameter.requiresGrad) addShared(parameter, pipeline);
}

function addShared(parameter: Parameter, { group }: Pipeline): void {
  const { owners, grad, fqn, device } = parameter;
  if (owners === undefined || grad === undefined) {
    throw new InternalError(`a stage has no gradient of '${fqn}', which it shares with others`);
  }
  using _frame = scope();
  const n = grad.numel;
  const byteLength = n * float32.byteLength;
  const make = (): Tensor => Tensor.empty(device, [n], float32, "gradients of other stages");
  using own = make();
  copyAcross(own, grad, byteLength);
  const received = new Map(owners.places.flatMap((place) => place === group.rank ? [] : [[place, make()] as const]));
  try {
    const transfers = [...received].flatMap(([peer, { ptr }]): Transfer[] => [
      { kind: "send", ptr: own.ptr, byteLength, peer },
      { kind: "receive", ptr, byteLength, peer },
    ]);
    group.transfer(transfers, `gradient of '${fqn}'`).wait();
    using sum = make();
    device.kernels.fill({ dtype: float32, n, value: 0, dst: sum.ptr });
    for (const place of owners.places) {
      const { ptr: src } = received.get(place) ?? own;
      device.kernels.accumulate({ dstDtype: float32, srcDtype: float32, n, dst: sum.ptr, src });
    }
    copyAcross(grad, sum, byteLength);
  } finally {
    for (const tensor of received.values()) tensor.dispose();
  }
}

/**
 * A forward of one micro-batch through all stages, without gradients. Every rank of the pipeline calls it.
 *
 * @returns the output, on the rank of the last stage; undefined on others
 */
export function forwardThroughStages(
  model: CausalLm,
  pipeline: Pipeline,
  inputs: CausalLmInputs,
): HeadOutput | undefined {
  const { group, stages } = pipeline;
  const { inputIds, pastKeyValues } = inputs;
  const rows = {
    batch: at(inputIds.shape, 0, "size of dim"),
    seq: at(inputIds.shape, 1, "size of dim"),
    past: pastKeyValues === undefined ? 0 : pastKeyValues.length,
  };
  let output: HeadOutput | undefined;
  for (const stage of stages.keys()) {
    if (pipeline.rankOf(stage) !== group.rank) continue;
    const { begin, end } = stageAt(pipeline, stage);
    const tensors = stage === 0 ? [] : carriedSpecs(model, begin, rows, pipeline.dtype).map(({ shape, dtype }) => {
      return inputIds.spawn(shape, dtype, "messages of stages");
    });
    const messages = (kind: Transfer["kind"], list: readonly Tensor[], peer: number): void => {
      const what = `activations of stage ${kind === "send" ? stage : stage - 1}`;
      group.transfer(list.map((tensor) => transferOf(kind, tensor, peer, what)), what).wait();
    };
    if (stage > 0) messages("receive", tensors, pipeline.rankOf(stage - 1));
    const carried = stage === 0 ? undefined : carriedFrom(tensors);
    output = noGrad(() => callSection(model, pipeline, stage, inputs, carried));
    if (output.carried === undefined) continue;
    const given = tensorsOf(output.carried).map((tensor) => tensor.contiguous());
    requireCarried(given, carriedSpecs(model, end, rows, pipeline.dtype), stage);
    messages("send", given, pipeline.rankOf(stage + 1));
  }
  pastKeyValues?.advance(rows.seq);
  return group.rank === pipeline.rankOf(stages.length - 1) ? output : undefined;
}
