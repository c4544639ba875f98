/**
 * What an optimizer must not be given: gradients that differ between ranks beside ones that do not.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import type { Parameter } from "../tensor/parameter.ts";

/**
 * Refuses trained parameters that nobody reduces beside sharded ones (PyTorch: "mixed torch.Tensor and DTensor"): each rank
 * would take other steps with them, and another norm.
 *
 * @param what what is to be done, e.g. `clip gradients`
 * @throws {ArgumentError} naming them
 */
export function requireReduced(parameters: readonly Parameter[], what: string): void {
  const sharded = parameters.find(({ storage }) => storage.kind === "sharded");
  if (sharded === undefined) return;
  const alone = parameters.filter(({ trainable, storage }) => trainable && storage.kind === "plain");
  if (alone.length === 0) return;
  const names = alone.slice(0, 10).map(({ fqn }) => `'${fqn}'`).join(", ");
  const more = alone.length > 10 ? ` and ${alone.length - 10} more` : "";
  throw new ArgumentError(
    `Cannot ${what}: nothing reduces ${names}${more} over ranks, while '${sharded.fqn}' is sharded; ` +
      "call fullyShard on the module that holds all of them too, replicate them, or freeze them",
  );
}
