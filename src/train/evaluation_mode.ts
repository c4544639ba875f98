/**
 * A model that is evaluated for a while: its modules train again afterwards as each did before.
 *
 * @module
 */
import type { Module } from "../nn/module.ts";

/** Sets a model to evaluation until the end of the block: `using _mode = evaluationMode(model)`. */
export function evaluationMode(model: Module): Disposable {
  const before = Array.from(model.namedModules(), ([, module]) => ({ module, training: module.training }));
  model.eval();
  return {
    [Symbol.dispose]: () => {
      // Parents come first, so what is set for all below one is then set right for each.
      for (const { module, training } of before) module.train(training);
    },
  };
}
