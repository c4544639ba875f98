/**
 * Activation checkpointing (PyTorch's `apply_activation_checkpointing`): a module keeps its inputs instead of its activations,
 * and is computed again when the backward reaches it. It saves memory at the cost of a second forward.
 *
 * @module
 */
import { requireWord } from "../config/known_values.ts";
import { requireKnownKeys } from "../config/known_keys.ts";
import { gradEnabled } from "../autograd/mode.ts";
import { recordRegion } from "../autograd/recompute.ts";
import { ArgumentError } from "../errors.ts";
import { attentionOp } from "../ops/attention.ts";
import { linearOp, matmulOp } from "../ops/matmul.ts";
import { scope } from "../tensor/scope.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { ModuleContainer } from "./container.ts";
import { valueText } from "../words.ts";
import { type HookHandle, type Module, modulesOf } from "./module.ts";
import { mapTensors, tensorsIn } from "./tree.ts";

/** Operations whose results may be kept, because they cost most to compute again. */
export const SAVEABLE_OPS = ["attention", "linear", "matmul"] as const;
/** Name of an operation whose results may be kept. */
export type SaveableOp = typeof SAVEABLE_OPS[number];

/** The records of {@link SAVEABLE_OPS}. */
const SAVEABLE = { attention: attentionOp, linear: linearOp, matmul: matmulOp } satisfies Record<SaveableOp, object>;

/** Operations whose results each checkpointed module keeps. */
const CHECKPOINTED: WeakMap<Module, readonly SaveableOp[]> = new WeakMap();

/** The operations whose results a checkpointed module keeps; undefined if it is not checkpointed. */
export function savedOpsOf(module: Module): readonly SaveableOp[] | undefined {
  return CHECKPOINTED.get(module);
}

/** Options of {@link applyActivationCheckpointing}. */
export interface ActivationCheckpointingOptions {
  /** The distance from one checkpointed module of the list to the next, counted from the first. @default 1 */
  readonly every?: number;
  /**
   * Operations whose results are kept, while all others are computed again (selective activation checkpointing, PyTorch's
   * `create_selective_checkpoint_contexts`). @default none
   */
  readonly saveOps?: readonly SaveableOp[];
}

/**
 * Checkpoints modules, each by itself: between forward and backward it holds no activations but those it was given, and
 * results of `saveOps`. Gradients are the same to the bit. It changes no FQN, and goes with `fullyShard` and `replicate` in any order:
 * a unit is gathered once for a recomputation and the backward after it.
 *
 * The modules are run by `call` with tensors, arrays and plain objects of them, and must compute the same each time.
 *
 * @param modules a module, or a list such as a model's blocks
 * @returns takes it back, for forwards to come
 * @throws {ArgumentError} if a module has no forward or is checkpointed already, or if `every` is no positive integer; and when a
 * module runs inside a checkpointed one, is given what cannot be looked into, or computes something else the second time
 * @example
 * ```ts
 * import { applyActivationCheckpointing, scope } from "fullyshard";
 * import { initializeParameters, Linear, zeros } from "fullyshard/nn";
 * import { openDevice } from "fullyshard/device";
 * const device = await openDevice("cpu");
 * const blocks = [new Linear(device, 8, 8), new Linear(device, 8, 8)];
 * for (const block of blocks) initializeParameters(block, 0);
 * applyActivationCheckpointing(blocks, { every: 2 });
 * using _step = scope();
 * blocks.reduce((x, block) => block.call(x), zeros(device, [4, 8])).sum().backward();
 * if (blocks.some(({ weight }) => weight.grad === undefined)) throw new Error("no gradient");
 * ```
 */
export function applyActivationCheckpointing(
  modules: Module | readonly Module[],
  options: ActivationCheckpointingOptions = {},
): HookHandle {
  requireKnownKeys("checkpoint activations", options, { every: true, saveOps: true });
  const { every = 1, saveOps = [] } = options;
  if (!Number.isSafeInteger(every) || every < 1) {
    throw new ArgumentError(`Cannot checkpoint every ${every} modules: give a positive integer`);
  }
  const isList: boolean = Array.isArray(saveOps);
  if (!isList) throw new ArgumentError(`Cannot checkpoint with saveOps ${valueText(saveOps)}: expected a list of ops`);
  for (const op of saveOps) requireWord("checkpoint", "saveOps", op, SAVEABLE_OPS);
  const kept = new Set(saveOps.map((op) => SAVEABLE[op].name));
  const chosen = modulesOf("checkpoint", modules).filter((_, i) => i % every === 0);
  for (const module of chosen) {
    if (!(module instanceof ModuleContainer)) continue;
    throw new ArgumentError(`Cannot checkpoint ${module.constructor.name}: it has no forward; give the modules in it`);
  }
  const handles = chosen.map((module) =>
    module.wrapForward((forward, args) => gradEnabled() ? checkpointed(module, forward, args, kept) : forward(...args))
  );
  for (const module of chosen) CHECKPOINTED.set(module, saveOps);
  return () => {
    for (const detach of handles) detach();
    for (const module of chosen) CHECKPOINTED.delete(module);
  };
}

/** Runs a forward that is computed again when its backward comes. */
function checkpointed<Args extends readonly unknown[], Out>(
  module: Module,
  forward: (...args: Args) => Out,
  args: Args,
  kept: ReadonlySet<string>,
): Out {
  const { fqn, constructor } = module;
  const name = fqn === undefined || fqn === "" ? constructor.name : fqn;
  tensorsIn(args, (hidden) => {
    throw new ArgumentError(
      `Cannot checkpoint '${name}': it is given a ${hidden.constructor.name}, which may be another one when it is computed again; ` +
        "give it tensors, arrays or plain objects of them",
    );
  });
  const inputs: Tensor[] = [];
  const again = mapTensors(args, (tensor) => {
    const input = detachedLike(tensor);
    inputs.push(input);
    return input;
  });
  const compute = (): void => {
    using _frame = scope();
    forward(...again);
  };
  return recordRegion({ name, inputs, keeps: (op) => kept.has(op), compute }, () => forward(...args));
}

/** A handle on the same memory whose gradient, if it needs one, goes nowhere. */
function detachedLike(tensor: Tensor): Tensor {
  const handle = tensor.alias();
  const { requiresGrad, shape, dtype } = tensor;
  if (requiresGrad) handle.setEdge({ node: undefined, index: 0, sink: undefined, shape, dtype });
  return handle;
}
