/**
 * Kernels that a device must have, asked for when a part of a model is made: so a model is refused as a whole, and not in the
 * middle of a step.
 *
 * @module
 */
import { UnsupportedError } from "../../errors.ts";
import { countOf } from "../../words.ts";
import type { Device } from "../device.ts";
import type { KernelName } from "./table.ts";

/**
 * Refuses a part of a model on a device that lacks kernels of it.
 *
 * @param part what needs them, e.g. `a layer of the gated delta rule`
 * @throws {UnsupportedError} naming the kernels
 */
export function requireKernels(
  device: Pick<Device, "name" | "lacks">,
  part: string,
  kernels: readonly KernelName[],
): void {
  const missing = kernels.filter((name) => device.lacks?.has(name));
  if (missing.length === 0) return;
  const names = missing.map((name) => `'${name}'`).join(", ");
  const what = countOf(missing.length, "kernel").replace(/^\d+ /, "");
  throw new UnsupportedError(`Cannot make ${part} on ${device.name}: it lacks the ${what} ${names}. Use device 'cpu'`);
}
