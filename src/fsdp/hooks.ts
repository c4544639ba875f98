/**
 * Attaches a unit to its module: gathers before the forward, frees after it, and hangs the backward's two hooks on the
 * graph. The first unit's module to run that no other contains is the root; it finishes every forward and every pass.
 *
 * Note [Backward hooks]: the pre-backward hook sits on the tensors that the module returned and runs when their gradients
 * are known; the post-backward hook sits on those it was given, so everything inside has been done by then. A module whose
 * inputs need no gradient (an embedding) has no such tensor: the end of the pass closes its unit.
 *
 * Note [Forwards inside forwards]: a module may run itself again inside its forward, as where a method that was registered with
 * `registerFsdpForwardMethod` calls the forward. The parameters are gathered until the outermost of these forwards has ended, and
 * freed in the backward when it has left that one.
 *
 * Note [Recomputed forwards]: a unit inside a checkpointed module runs its forward again in the backward pass. Its hooks are on the
 * graph already, from the forward; so this one only needs the parameters, which stay for the unit's backward.
 *
 * @module
 */
import { isRecomputing } from "../autograd/recompute.ts";
import { ArgumentError, InternalError } from "../errors.ts";
import type { ForwardHook, ForwardPreHook, HookHandle, Module } from "../nn/module.ts";
import { tensorsIn } from "../nn/tree.ts";
import { hookBackward } from "../tensor/apply.ts";
import { FsdpRoot } from "./root.ts";
import type { FsdpUnit } from "./unit.ts";

/**
 * Makes `unit` follow its modules.
 *
 * @param unitsBelow gives all units of the modules' trees, this one first
 * @returns lets go of the modules
 */
export function attachHooks(unit: FsdpUnit, unitsBelow: () => readonly FsdpUnit[]): HookHandle {
  // A forward of a module inside a forward of the same module is part of that one: see Note [Forwards inside forwards].
  const depths = new Map<Module, number>(unit.modules.map((module) => [module, 0]));
  const depthOf = (module: Module): number => depths.get(module) ?? 0;
  const before = (module: Module): ForwardPreHook => (args) => {
    if (isRecomputing()) return unit.recomputeForward();
    depths.set(module, depthOf(module) + 1);
    let isInside = true;
    const leave = (): void => {
      if (isInside) depths.set(module, depthOf(module) - 1);
      isInside = false;
    };
    if (depthOf(module) > 1) return leave;
    try {
      if (unit.root === undefined) becomeRoot(unit, unitsBelow());
      unit.beginForward();
      let unhook = hookBackward(tensorsIn(args), {
        name: `the input of '${unit.name}'`,
        run: () => unit.postBackward(),
      });
      return (failed) => {
        leave();
        unhook?.();
        unhook = undefined;
        if (failed) unit.abandonForward();
      };
    } catch (error) {
      leave();
      throw error;
    }
  };
  const after = (module: Module): ForwardHook => (_args, output) => {
    if (isRecomputing() || depthOf(module) > 0) return;
    const { root } = unit;
    if (root === undefined) throw new InternalError(`'${unit.name}' ran its forward without a root`);
    const use = root.openUse(unit);
    const hook = {
      name: `the output of '${unit.name}'`,
      run: () => unit.preBackward(use),
      freed: () => use.close(),
    };
    if (hookBackward(tensorsIn(output), hook) === undefined) use.close();
    unit.endForward(module);
    if (unit === root.units[0]) root.endForward();
  };
  const handles = unit.modules.flatMap((module) => [
    module.registerForwardPreHook(before(module)),
    module.registerForwardHook(after(module)),
    module.castBoundary(unit.policy.boundary),
  ]);
  return () => {
    for (const detach of handles) detach();
  };
}

function becomeRoot(unit: FsdpUnit, units: readonly FsdpUnit[]): void {
  const [module, another] = unit.modules;
  if (module === undefined || another !== undefined) {
    throw new ArgumentError(
      `Cannot run '${unit.name}' by itself: a root is one module; call fullyShard on the module that holds these, and run that first`,
    );
  }
  const early = units.find((member) => member.root !== undefined);
  if (early !== undefined) {
    throw new ArgumentError(
      `Cannot run '${unit.name}': '${early.name}' below it ran before it and took itself for the root; run the outermost sharded ` +
        "module first",
    );
  }
  module.ensureNames();
  const root = new FsdpRoot(units);
  for (const member of units) member.root = root;
  unit.reshardAfterForward ??= false;
}
