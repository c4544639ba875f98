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
import { ArgumentError, InternalError } from "../errors.ts";
import { collectTensors, ensureNames, type Module } from "../nn/module.ts";
import { hookBackward } from "../tensor/apply.ts";
import type { FsdpUnit, RootContext } from "./unit.ts";

/** Makes `unit` follow `module`; `unitsBelow` gives all units of the module's tree, this one first. */
export function attachHooks(module: Module, unit: FsdpUnit, unitsBelow: () => readonly FsdpUnit[]): void {
  module.registerForwardPreHook((args) => {
    if (unit.context === undefined) becomeRoot(module, unit, unitsBelow());
    if (unit.context?.units[0] === unit) unit.context.forwardOrder.length = 0;
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
    if (hooked) unit.openUse();
    if (unit.reshardAfterForward !== false || !gradEnabled()) unit.reshard();
  });
}

function becomeRoot(module: Module, unit: FsdpUnit, units: readonly FsdpUnit[]): void {
  const early = units.find((member) => member.context !== undefined);
  if (early !== undefined) {
    throw new ArgumentError(
      `Cannot run '${unit.name}': '${early.name}' below it ran before it and took itself for the root; run the outermost sharded ` +
        "module first",
    );
  }
  const context: RootContext = { units, forwardOrder: [], pass: undefined };
  ensureNames(module);
  for (const member of units) {
    member.context = context;
    member.rename();
  }
  unit.reshardAfterForward ??= false;
}

function queueFinal(context: RootContext): void {
  const pass = activePass();
  if (pass === undefined) throw new InternalError("a pre-backward hook ran outside a backward pass");
  if (context.pass === pass) return;
  context.pass = pass;
  for (const unit of context.units) unit.beginPass();
  pass.atEnd(() => {
    context.pass = undefined;
    for (const unit of context.units.toReversed()) unit.endPass(); // the same order on every rank
    for (const unit of context.units) unit.reshard();
  });
}
