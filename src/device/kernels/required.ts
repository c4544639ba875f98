/**
 * A check that a device has the kernels of a part of a model, made when the part is made: so a model is refused before its first
 * step.
 *
 * @module
 */
import { UnsupportedError } from "../../errors.ts";
import { countOf } from "../../words.ts";
import type { Device } from "../device.ts";
import type { KernelName } from "./table.ts";

/**
 * Refuses a part of a model on a device that lacks its kernels.
 *
 * @param part name of the part, e.g. `a layer of the gated delta rule`
 * @throws {UnsupportedError} naming the kernels
 */
export function requireKernels(
  device: Pick<Device, "name" | "traits">,
  part: string,
  kernels: readonly KernelName[],
): void {
  const missing = kernels.filter((name) => device.traits.missingKernels.has(name));
  if (missing.length === 0) return;
  const names = missing.map((name) => `'${name}'`).join(", ");
  const what = countOf(missing.length, "kernel").replace(/^\d+ /, "");
  throw new UnsupportedError(`Cannot make ${part} on ${device.name}: it lacks the ${what} ${names}. Use device 'cpu'`);
}
