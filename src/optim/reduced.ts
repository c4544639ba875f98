/**
 * Checks that refuse to train with gradients that differ between ranks.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import type { Parameter } from "../tensor/parameter.ts";

/**
 * Refuses parameters that require a gradient and that no parallelism reduces, if there are several ranks, or other parameters are
 * reduced (PyTorch: "mixed torch.Tensor and DTensor"): each rank would have a different gradient, norm and update of them.
 *
 * @param what the action in the error's text, e.g. `clip gradients`
 * @param worldSize the number of ranks, where that is known
 * @throws {ArgumentError} naming the parameters
 */
export function requireReducers(parameters: readonly Parameter[], what: string, worldSize: number = 1): void {
  const reduced = parameters.find(({ storage }) => storage.reducer !== undefined);
  if (reduced === undefined && worldSize === 1) return;
  const alone = parameters.filter(({ requiresGrad, storage: { reducer, kind } }) => {
    return requiresGrad && reducer === undefined && kind !== "absent";
  });
  if (alone.length === 0) return;
  const names = alone.slice(0, 10).map(({ fqn }) => `'${fqn}'`).join(", ");
  const more = alone.length > 10 ? ` and ${alone.length - 10} more` : "";
  const beside = reduced === undefined ? "" : `, while '${reduced.fqn}' is ${reduced.storage.kind}`;
  throw new ArgumentError(
    `Cannot ${what}: nothing reduces ${names}${more} over ranks${beside}; call fullyShard or replicate on the module that ` +
      "holds them, or freeze them",
  );
}

/**
 * Refuses what {@link requireReducers} refuses, and gradients that no backward has reduced yet.
 *
 * @throws {ArgumentError} naming the parameters
 */
export function requireReduced(parameters: readonly Parameter[], what: string): void {
  requireReducers(parameters, what);
  const waiting = parameters.find(({ requiresGrad, storage }) => requiresGrad && storage.hasUnreduced());
  if (waiting === undefined) return;
  throw new ArgumentError(
    `Cannot ${what}: the gradient of '${waiting.fqn}' is not fully reduced: before the step's last backward call ` +
      "setRequiresGradientSync(true), with replicas setRequiresAllReduce(true), and setIsLastBackward(true)",
  );
}
