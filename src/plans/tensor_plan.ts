/**
 * The plan of tensor parallelism of a model: its family's, with styles of one's own for some names.
 *
 * @module
 */
import { expertsOf } from "../axes/experts.ts";
import { fits, type ParallelizePlan } from "../axes/parallelize.ts";
import { sequenceNorms } from "../axes/sequence.ts";
import type { StyleName } from "../axes/styles.ts";
import { requireKnownKeys } from "../config/known_keys.ts";
import { ArgumentError, UnsupportedError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";

/** Options of {@link tensorPlanOf}. */
export interface TensorPlanOptions {
  /** Adds `sequence_parallel` of all norms that compute each position by itself. @default false */
  readonly sequenceParallel?: boolean;
  /**
   * Divides experts by their number, as transformers' `ep_plan` does, and not by their widths. @default false
   */
  readonly expertParallel?: boolean;
}

/**
 * The plan by which a model is cut over an axis, as transformers' `tp_plan="auto"` does for families that have one there.
 *
 * @param own styles by name that replace the family's, or are added to them
 * @throws {ArgumentError} for `expertParallel` of a model without experts
 * @throws {UnsupportedError} if the family has no plan, and none is given; or for `sequenceParallel` of a model that applies dropout between
 * layers
 * @example
 * ```ts
 * import { fullyShard, launch, openModel, parallelizeModule, tensorPlanOf } from "fullyshard";
 * await using run = await launch({ axes: { shard: 1, tensor: 1 } }); // under a launcher e.g. { shard: 2, tensor: 2 }
 * const sizes = { vocab_size: 64, n_embd: 32, n_layer: 2, n_head: 4, n_positions: 32 };
 * const model = await openModel(run, { model_type: "gpt2", ...sizes });
 * parallelizeModule(model, run.mesh.get("tensor"), tensorPlanOf(model));
 * fullyShard(model, { mesh: run.mesh.get("shard") });
 * await model.load();
 * ```
 */
export function tensorPlanOf(
  model: CausalLm,
  own: ParallelizePlan = {},
  options: TensorPlanOptions = {},
): ParallelizePlan {
  requireKnownKeys("plan tensor parallelism", options, { sequenceParallel: true, expertParallel: true });
  const { tensorPlan } = model;
  model.ensureNames();
  const norms = options.sequenceParallel ?? false ? sequenceNorms(model) : [];
  const ofNorms = Object.fromEntries(norms.map((name) => [name, "sequence_parallel"] as const));
  const ofExperts = options.expertParallel ?? false ? expertStyles(model) : {};
  if (tensorPlan === undefined) {
    if (Object.keys(own).length > 0) return { ...ofNorms, ...unlessNamed(ofExperts, own), ...own };
    const { hfConfig: { model_type: modelType } } = model;
    throw new UnsupportedError(
      `Cannot cut a model of model_type '${
        String(modelType)
      }' by itself: its family has no plan of tensor parallelism; give the ` +
        "styles of its layers",
    );
  }
  const names = [...model.namedModules(), ...model.namedParameters()].map(([name]) => name);
  const replaced = (name: string): boolean =>
    [...Object.keys(ofExperts), ...Object.keys(own)].some((one) => fits(name, one));
  const ofFamily = Object.entries(tensorPlan).flatMap(([pattern, style]) => {
    const fitting = names.filter((name) => fits(name, pattern));
    if (fitting.length > 0 && !fitting.some(replaced)) return [[pattern, style] as const];
    return fitting.filter((name) => !replaced(name)).map((name) => [name, style] as const);
  });
  return { ...Object.fromEntries(ofFamily), ...ofNorms, ...unlessNamed(ofExperts, own), ...own };
}

/** Styles by which experts are divided by their number. */
function expertStyles(model: CausalLm): ParallelizePlan {
  const layers = expertsOf(model);
  if (layers.size === 0) {
    throw new ArgumentError(`Cannot divide the experts of ${model.constructor.name}: it has none`);
  }
  return Object.fromEntries(
    Array.from(layers, ([name, experts]): [string, StyleName][] => [
      [name, "ep_dispatch_experts"],
      ...Array.from(experts.namedParameters(), ([own]): [string, StyleName] => [`${name}.${own}`, "grouped_gemm"]),
    ]).flat(),
  );
}

/** Styles of names that no pattern of a plan fits. */
function unlessNamed(styles: ParallelizePlan, plan: ParallelizePlan): ParallelizePlan {
  return Object.fromEntries(
    Object.entries(styles).filter(([name]) => !Object.keys(plan).some((pattern) => fits(name, pattern))),
  );
}
