/**
 * Runs cases and says how far they are from what is expected.
 *
 * @module
 */
import type { Device } from "../../src/device/device.ts";
import type { Case } from "./cases.ts";
import { compareCase, type Difference, type Expected, hashOf } from "./expected.ts";
import { type Computed, plainForm, runCase } from "./run.ts";

function attempt(device: Device, one: Case): Computed | Error {
  try {
    return runCase(device, one);
  } catch (error) {
    return error instanceof Error ? error : new Error(String(error));
  }
}

/** From what PyTorch gave; what PyTorch refuses must be refused. */
export function againstExpected(device: Device, one: Case, expected: Expected | undefined): Difference {
  if (expected?.hash !== hashOf(one.line)) return { share: Infinity, text: "the answer is of another case" };
  const computed = attempt(device, one);
  const isRefused = computed instanceof Error;
  if (expected.arrays === undefined) return { share: isRefused ? 0 : Infinity, text: "PyTorch refuses it" };
  return isRefused ? { share: Infinity, text: computed.message } : compareCase(one, computed, expected.arrays);
}

/** From the plain form of a case. */
export function againstPlain(device: Device, one: Case): Difference {
  const [computed, plain] = [attempt(device, one), attempt(device, plainForm(one))];
  if (computed instanceof Error || plain instanceof Error) {
    const isSame = computed instanceof Error && plain instanceof Error;
    return {
      share: isSame ? 0 : Infinity,
      text: computed instanceof Error ? computed.message : "its plain form fails",
    };
  }
  const expected = [...plain.outputs, ...plain.gradients].map((numbers) => {
    return numbers === undefined ? undefined : { numbers: Float32Array.from(numbers), distance: 0 };
  });
  return compareCase(one, computed, expected);
}
