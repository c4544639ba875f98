/** Refuses modules of one's own where a model of a family is needed. @module */
import { ArgumentError } from "../errors.ts";
import { CausalLm } from "../models/causal_lm.ts";

/**
 * Refuses a module that `openModel` has not made.
 *
 * @param call the function that takes the model, e.g. `run.backward`
 */
export function requireOpenedModel(call: string, model: unknown): void {
  if (model instanceof CausalLm) return;
  throw new ArgumentError(
    `Cannot use ${call} with a module of your own: it takes models of openModel and batches of textData. Compute a loss of your own, ` +
      "and call loss.backward()",
  );
}
