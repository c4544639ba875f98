/**
 * What must not be trained: gradients that differ between ranks.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import type { Parameter } from "../tensor/parameter.ts";

/**
 * Refuses trained parameters that no parallelism reduces, over several ranks or beside ones that are reduced (PyTorch: "mixed
 * torch.Tensor and DTensor"): each rank would take other steps with them, and another norm.
 *
 * @param what what is to be done, e.g. `clip gradients`
 * @param worldSize ranks that it is done on together, where that is known
 * @throws {ArgumentError} naming them
 */
export function requireReducers(parameters: readonly Parameter[], what: string, worldSize: number = 1): void {
  const reduced = parameters.find(({ storage }) => storage.reducer !== undefined);
  if (reduced === undefined && worldSize === 1) return;
  const alone = parameters.filter(({ requiresGrad, storage }) => requiresGrad && storage.reducer === undefined);
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
 * As {@link requireReducers}; and refuses gradients that no backward has reduced yet.
 *
 * @throws {ArgumentError} naming them
 */
export function requireReduced(parameters: readonly Parameter[], what: string): void {
  requireReducers(parameters, what);
  const waiting = parameters.find(({ requiresGrad, storage }) => requiresGrad && storage.hasUnreduced());
  if (waiting === undefined) return;
  throw new ArgumentError(
    `Cannot ${what}: the gradient of '${waiting.fqn}' is not reduced yet; let the last backward of a step reduce it ` +
      "(setRequiresGradientSync(true), setIsLastBackward(true))",
  );
}
