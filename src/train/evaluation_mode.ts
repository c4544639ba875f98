/**
 * Evaluation mode for a block of code: afterwards each module is in its earlier mode, and a root unit that a forward left
 * gathered is resharded.
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
      // Parents come first, so the mode set for all modules below a parent is then corrected for each.
      for (const { module, training, sharded } of before) {
        module.train(training);
        sharded?.reshard();
      }
    },
  };
}
