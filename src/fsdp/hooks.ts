/**
 * Hooks that make a unit follow its modules: one before each forward gathers the parameters, one after it frees them, and two on the
 * graph do so for the backward. The unit whose module is called first, and which must be the outermost, is the root. It ends every
 * forward and every pass.
 *
 * Note [Backward hooks]: the pre-backward hook lies on the tensors that the module returned, and is called when their gradients are
 * complete. The post-backward hook lies on the tensors that the module was given, so the backward of the module has ended when it is
 * called. A module whose inputs need no gradient, such as an embedding, has no such tensor; the end of the pass reduces its unit.
 *
 * Note [Forwards inside forwards]: a module may call itself inside its forward, as where a method that was registered with
 * `registerFsdpForwardMethod` calls the forward. The outermost of these forwards gathers and frees the parameters, and so does its
 * backward.
 *
 * Note [Recomputed forwards]: with activation checkpointing, the backward pass calls the forward of a unit again. The hooks of the
 * first forward are still on the graph. So the second forward only gathers the parameters, which stay for the unit's backward.
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
 * Attaches `unit` to its modules.
 *
 * @param unitsBelow gives all units of the modules' trees, this unit first
 * @returns detaches the unit
 */
export function attachHooks(unit: FsdpUnit, unitsBelow: () => readonly FsdpUnit[]): HookHandle {
  // A forward of a module inside a forward of the same module is part of the outer one: see Note [Forwards inside forwards].
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
      `Cannot run '${unit.name}' as the FSDP root: its submodule '${early.name}' ran a forward first and became a root. Run the root ` +
        "module's forward first, or shard only what you run alone",
    );
  }
  module.ensureNames();
  const root = new FsdpRoot(units);
  for (const member of units) member.root = root;
  unit.reshardAfterForward ??= false;
}
