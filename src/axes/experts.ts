/**
 * Expert parallelism: each rank of an axis keeps some of the experts, and computes with them for the tokens of all ranks of the axis. These
 * read different samples, so all other parameters are sharded or copied over the axis as over any other data axis.
 *
 * @module
 */
import { at } from "../at.ts";
import type { DeviceMesh } from "../comm/mesh.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { int32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { type ExpertExchange, Experts } from "../nn/experts.ts";
import type { HookHandle, Module } from "../nn/module.ts";
import { cutParameters } from "../parallel/cut.ts";
import { requireOneAxis } from "../parallel/ranks.ts";
import type { CutRule } from "../tensor/cut.ts";
import { tensor } from "../tensor/create.ts";
import { isKeptHere } from "../tensor/owners.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { takeAll } from "../unwind.ts";
import { requireDivisible } from "./checks.ts";
import { countsOf, fromExperts, planRows, toExperts } from "./expert_rows.ts";

/** Computes with the experts of all ranks of a group. */
function exchangeOver(group: ProcessGroup, name: string): ExpertExchange {
  return (rows, ends, compute) => {
    const own = countsOf(ends, at(rows.shape, 0, "dim"), group);
    const counts = group.exchange(new Uint8Array(own.buffer), `rows by expert of '${name}'`);
    const plan = planRows(counts.map((bytes) => new Int32Array(bytes.slice().buffer)), group.rank);
    const taken = toExperts(rows, plan, group, name);
    const made = compute(taken, tensor(rows.device, plan.ends, { dtype: int32 }));
    return fromExperts(made, plan, group, name);
  };
}

function expertLayers(module: Module): ReadonlyMap<string, Experts> {
  return new Map([...module.namedModules()].flatMap(([name, one]) => one instanceof Experts ? [[name, one]] : []));
}

/** The layers of experts in a model, by name: one for each mixture. A rank of a pipeline gets the layers of its own stages. */
export function expertsOf(module: Module): ReadonlyMap<string, Module> {
  return new Map([...expertLayers(module)].filter(([, { gateUpProj }]) => isKeptHere(gateUpProj.owners)));
}

/**
 * Divides the experts of a module over an axis of a mesh: each rank keeps as many, in the order of the ranks. Tokens go to the ranks of
 * their experts and come back, in each forward and backward, so every rank must make the same calls. Collective over the axis. Divide
 * first, then shard, and initialize or load last: values and checkpoints are the full model's.
 *
 * The ranks of the axis read different samples. Shard the experts over the other data axes, and all else over these and this axis. An
 * expert's gradient is the sum over the tokens of all ranks, within rounding of what one rank computes.
 *
 * @param module a model with experts, or a part of one
 * @param axis one axis of a mesh, e.g. `run.mesh.get("expert")`
 * @returns undoes it, as long as the parameters are plain and have no values
 * @throws {ArgumentError} if it has no experts, or their number is no multiple of the ranks
 * @throws {UnsupportedError} for experts with adapters
 * @example
 * ```ts ignore
 * const run = await launch({ axes: { shard: 2, expert: 2 } });
 * const model = await openModel(run, "path/to/qwen3_moe");
 * parallelizeExperts(model, run.mesh.get("expert"));
 * for (const experts of expertsOf(model).values()) fullyShard(experts, { mesh: run.mesh.get("shard") });
 * fullyShard(model, { mesh: run.mesh.flatten(["shard", "expert"], "shard_expert") });
 * await model.load();
 * ```
 */
export function parallelizeExperts(module: Module, axis: DeviceMesh): HookHandle {
  requireOneAxis(axis, "divide experts");
  const { group } = axis;
  module.ensureNames();
  const experts = group.agree(`divide the experts of ${module.constructor.name}`, () => {
    const found = expertLayers(module);
    if (found.size === 0) {
      throw new ArgumentError(`Cannot divide the experts of ${module.constructor.name}: it has none`);
    }
    for (const [name, one] of found) requireDivisible(name, one, group);
    return found;
  });
  if (group.size === 1) return () => {};
  const rules = new Map<Parameter, CutRule>();
  for (const one of experts.values()) for (const parameter of one.parameters()) rules.set(parameter, { dim: 0 });
  const uncut = cutParameters(axis, rules);
  const ends = Array.from(experts, ([name, one]) => one.addExchange(exchangeOver(group, name)));
  return () => {
    uncut(); // where that is refused, experts stay divided
    takeAll(ends.splice(0));
  };
}
