/**
 * Tensor parallelism: linear layers of a model compute with parts of their weights, by a plan of names and styles (PyTorch's
 * `parallelize_module`, `torch/distributed/tensor/parallel/api.py`; plans are spelled as in transformers).
 *
 * @module
 */
import type { DeviceMesh } from "../comm/mesh.ts";
import { didYouMean } from "../config/nearest.ts";
import { ArgumentError } from "../errors.ts";
import { Embedding } from "../nn/embedding.ts";
import { Experts } from "../nn/experts.ts";
import { LanguageModelHead } from "../nn/head.ts";
import type { HookHandle, Module } from "../nn/module.ts";
import { cutParameters } from "../parallel/cut.ts";
import { requireOneAxis } from "../parallel/ranks.ts";
import type { CutRule } from "../tensor/cut.ts";
import { BufferTensor } from "../tensor/buffer_tensor.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { takeAll } from "../unwind.ts";
import { type CutModule, requireCuttable } from "./checks.ts";
import { joinEnds } from "./ends.ts";
import { sharedRows } from "./sequence.ts";
import { cutRulesOf, type CutTarget, type Style, type StyleName, styleOf } from "./styles.ts";

/** Styles of layers by their names below the module; `*` stands for one part of a name, e.g. `model.layers.*.mlp.up_proj`. */
export type ParallelizePlan = Readonly<Record<string, StyleName>>;

/**
 * Has linear layers of a module compute with parts of their weights, over an axis of a mesh. Collective over the axis. Parallelize
 * first, then shard over the axes that carry data, and initialize or load last: values and checkpoints are the full model's.
 *
 * Every rank of the axis must be given the same input. A `colwise` layer gives a part of the outputs, which a `rowwise` layer takes and
 * adds up over the axis; `SelfAttention` computes with as many heads as its projections give. On an axis of one rank nothing changes.
 *
 * Where all norms of the blocks, and the one behind them, are `sequence_parallel`, each rank has its positions of every row between these
 * layers: activations take less memory, and losses have the same bits.
 *
 * @param module a model, or a part of one
 * @param axis an axis of a mesh, e.g. `run.mesh.get("tensor")`
 * @param plan the layers that are cut, each with its style
 * @returns undoes it, as long as the parameters are plain and have no values
 * @throws {ArgumentError} if a name of the plan fits no linear layer, a style is unknown, or ranks do not divide what must be
 * divided; nothing is changed then
 * @throws {UnsupportedError} for parts of what cannot be cut yet
 * @example
 * ```ts
 * import { fullyShard, launch, openModel, parallelizeModule } from "fullyshard";
 * await using run = await launch({ axes: { shard: 1, tensor: 1 } }); // under a launcher e.g. { shard: 2, tensor: 2 }
 * const sizes = { vocab_size: 64, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4 };
 * const model = await openModel(run, { model_type: "llama", ...sizes });
 * parallelizeModule(model, run.mesh.get("tensor"), {
 *   "model.layers.*.self_attn.q_proj": "colwise",
 *   "model.layers.*.self_attn.k_proj": "colwise",
 *   "model.layers.*.self_attn.v_proj": "colwise",
 *   "model.layers.*.self_attn.o_proj": "rowwise",
 *   "model.layers.*.mlp.gate_proj": "colwise",
 *   "model.layers.*.mlp.up_proj": "colwise",
 *   "model.layers.*.mlp.down_proj": "rowwise",
 * });
 * for (const block of model.layers) fullyShard(block, { mesh: run.mesh.get("shard") });
 * fullyShard(model, { mesh: run.mesh.get("shard") });
 * await model.load();
 * ```
 */
export function parallelizeModule(module: Module, axis: DeviceMesh, plan: ParallelizePlan): HookHandle {
  requireOneAxis(axis, "parallelize");
  module.ensureNames();
  const { group } = axis;
  const rules = new Map<Parameter, CutRule>();
  const { cuts, rows } = group.agree(`parallelize ${module.constructor.name}`, () => {
    const found = cutModules(module, plan);
    const rows = sharedRows(module, found);
    for (const cut of found) {
      requireCuttable(cut, group);
      for (const [target, style] of cut.parts) {
        for (const [parameter, rule] of cutRulesOf(target, style, cut.module)) {
          requireOnce(parameter, rule, rules.get(parameter));
          rules.set(parameter, rule);
        }
      }
    }
    return { cuts: found, rows };
  });
  if (group.size === 1) return () => {};
  const uncut = cutParameters(axis, rules);
  const ends = cuts.flatMap((cut) => joinEnds(cut, group, rows?.summed.get(cut.module)));
  ends.push(...rows?.join(group) ?? []);
  return () => {
    uncut(); // where that is refused, layers go on with their parts
    takeAll(ends.splice(0));
  };
}

/** Targets of a plan, by the modules that hold them. */
function cutModules(root: Module, plan: ParallelizePlan): readonly CutModule[] {
  const modules = new Map(root.namedModules());
  const names = new Map<string, CutTarget>([...modules, ...root.namedParameters()]);
  const styles = new Map<CutTarget, Style>();
  for (const [pattern, given] of Object.entries(plan)) {
    const style = styleOf(given, pattern);
    const found = [...names].filter(([name]) => fits(name, pattern));
    if (found.length === 0) {
      throw new ArgumentError(`The plan's '${pattern}' fits no module${didYouMean(pattern, names.keys())}`);
    }
    for (const [name, target] of found) {
      const before = styles.get(target);
      if (before !== undefined && before !== style) {
        throw new ArgumentError(`Cannot cut '${name}' ${style}: the plan says ${before} as well`);
      }
      styles.set(target, style);
    }
  }
  cutTied(modules.values(), styles);
  return [...modules].flatMap(([name, module]) => {
    const own = [...module.children()].flatMap(([, child]): [CutTarget, Style][] => {
      const style = child instanceof BufferTensor ? undefined : styles.get(child);
      return child instanceof BufferTensor || style === undefined ? [] : [[child, style]];
    });
    const style = styles.get(module);
    // Experts that a plan names without their weights are refused, as the outputs of all ranks would be added up.
    if (own.length === 0 && !(module instanceof Experts && style !== undefined)) return [];
    return [{ name, module, style, parts: new Map(own) }];
  });
}

/** Cuts an embedding and the head that it is tied to alike, as they have one weight. */
function cutTied(modules: Iterable<Module>, styles: Map<CutTarget, Style>): void {
  const all = [...modules];
  const cut = new Set([...styles.keys()].flatMap((target) => isVocabulary(target) ? [target.weight] : []));
  for (const module of all) {
    if (!isVocabulary(module) || styles.has(module) || !cut.has(module.weight)) continue;
    styles.set(module, module instanceof Embedding ? "embedding_rowwise" : "colwise_gather_output");
  }
}

function isVocabulary(target: CutTarget): target is Embedding | LanguageModelHead {
  return target instanceof Embedding || target instanceof LanguageModelHead;
}

/** True if a name matches a pattern part by part; `*` matches any part. */
export function fits(name: string, pattern: string): boolean {
  const [parts, wanted] = [name.split("."), pattern.split(".")];
  return parts.length === wanted.length && wanted.every((part, i) => part === "*" || part === parts[i]);
}

/** Refuses to cut a weight that two layers share in two ways. */
function requireOnce({ fqn }: Parameter, { dim, packs }: CutRule, before: CutRule | undefined): void {
  if (before === undefined || (before.dim === dim && before.packs === packs)) return;
  throw new ArgumentError(`Cannot cut '${fqn}' by dim ${dim}: a layer that it is tied to is cut by dim ${before.dim}`);
}
