/**
 * A model that is evaluated for a while: its modules train again afterwards as each did before, and what a sharded model's
 * root leaves gathered after a forward is freed.
 *
 * @module
 */
import { shardedModuleOf } from "../fsdp/handle.ts";
import type { Module } from "../nn/module.ts";

/** Sets a model to evaluation until the end of the block: `using _mode = evaluationMode(model)`. */
export function evaluationMode(model: Module): Disposable {
  const before = Array.from(model.namedModules(), ([, module]) => {
    const unit = shardedModuleOf(module)?.unit;
    return { module, training: module.training, sharded: unit?.unsharded === false ? unit : undefined };
  });
  model.eval();
  return {
    [Symbol.dispose]: () => {
      // Parents come first, so what is set for all below one is then set right for each.
      for (const { module, training, sharded } of before) {
        module.train(training);
        sharded?.reshard();
      }
    },
  };
}
