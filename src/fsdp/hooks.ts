/**
 * Attaches a unit to its modules: gathers before the forward, frees after it, and hangs the backward's two hooks on the
 * graph. The first unit's module to run that no other contains is the root; it finishes every pass.
 *
 * Note [Backward hooks]: the pre-backward hook sits on the tensors that the module returned and runs when their gradients
 * are known; the post-backward hook sits on those it was given, so everything inside has been done by then. A module whose
 * inputs need no gradient (an embedding) has no such tensor: the root's end-of-backward callback closes its unit.
 *
 * @module
 */
import { activePass } from "../autograd/engine.ts";
import { gradEnabled } from "../autograd/mode.ts";
import { InternalError } from "../errors.ts";
import { collectTensors, type Module, nameParameters } from "../nn/module.ts";
import { hookBackward } from "../tensor/apply.ts";
import type { FsdpUnit, RootContext } from "./unit.ts";

/** Makes `unit` follow `module`; `unitsBelow` gives all units of the module's tree, this one first. */
export function attachHooks(module: Module, unit: FsdpUnit, unitsBelow: () => readonly FsdpUnit[]): void {
  module.registerForwardPreHook((args) => {
    if (unit.context === undefined) becomeRoot(module, unit, unitsBelow());
    unit.unshard("forward");
    hookBackward(`post-backward of '${unit.name}'`, collectTensors(args), () => unit.postBackward());
  });
  module.registerForwardHook((_args, output) => {
    const context = unit.context;
    if (context === undefined) throw new InternalError(`'${unit.name}' ran its forward without a root`);
    const hooked = hookBackward(`pre-backward of '${unit.name}'`, collectTensors(output), () => {
      queueFinal(context);
      unit.preBackward();
    });
    if (hooked) context.forwardOrder.push(unit);
    if (unit.reshardAfterForward || !gradEnabled()) unit.reshard();
  });
}

function becomeRoot(module: Module, unit: FsdpUnit, units: readonly FsdpUnit[]): void {
  const context: RootContext = { units, forwardOrder: [], finalQueued: false };
  nameParameters(module);
  for (const member of units) member.context = context;
  if (unit.policy.reshardAfterForward === undefined) unit.reshardAfterForward = false;
}

function queueFinal(context: RootContext): void {
  if (context.finalQueued) return;
  const pass = activePass();
  if (pass === undefined) throw new InternalError("a pre-backward hook ran outside a backward pass");
  context.finalQueued = true;
  pass.atEnd(() => {
    context.finalQueued = false;
    for (const unit of context.units.toReversed()) unit.postBackward(); // the same order on every rank
    for (const unit of context.units) unit.reshard();
    context.forwardOrder.length = 0;
  });
}
