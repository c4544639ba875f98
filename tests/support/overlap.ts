/** Finds accesses of a kernel's call that overlap and must not. @module */
import type { Access } from "../../src/device/kernels/accesses.ts";
import type { KernelEntry } from "../../src/device/kernels/signature.ts";

/** The first two accesses of a call that overlap although its entry does not allow it. */
export function overlapOf(entry: KernelEntry, accesses: readonly Access[]): readonly [Access, Access] | undefined {
  for (const [i, a] of accesses.entries()) {
    for (const b of accesses.slice(i + 1)) {
      if (a.direction === "reads" && b.direction === "reads") continue;
      if (a.address + a.byteLength <= b.address || b.address + b.byteLength <= a.address) continue;
      if (a.byteLength === 0 || b.byteLength === 0) continue;
      const same = a.address === b.address && a.byteLength === b.byteLength;
      if (!same || !(mayBe(entry, a, b) || mayBe(entry, b, a))) return [a, b];
    }
  }
  return undefined;
}

function mayBe({ arrays }: KernelEntry, one: Access, other: Access): boolean {
  return arrays[one.parameter]?.mayBe?.includes(other.parameter) ?? false;
}
