/**
 * Abilities of NCCL by its version. Without copy engines or symmetric memory, the kernels of a gather take multiprocessors
 * from computation. For each communicator NCCL itself decides if its cards can reach each other that way.
 *
 * @module
 */
import type { NCCL_BINDINGS } from "../../../ffi/bindings/nccl.ts";
import type { Library } from "../../../ffi/types.ts";
import type { Environment } from "../../../runtime/env.ts";

export type Nccl = Library<typeof NCCL_BINDINGS>;

/** The fastest way in which NCCL gathers between registered memory; `kernels` where nothing is registered. */
export type GatheringBy = "copy engines" | "symmetric kernels" | "kernels";

/**
 * First versions, as `ncclGetVersion` numbers them, that register windows, have the zero-CTA policy, and join ranks on one card.
 */
const [REGISTERS, ZERO_CTA, JOINS_ON_ONE_CARD] = [22_700, 22_800, 23_000];

/** Version of the library, e.g. 22809. */
export function versionOf({ provider, symbols }: Nccl): number {
  const version = provider.out("i32");
  symbols.ncclGetVersion(version);
  return version.value;
}

/** A version in words, e.g. `2.28.9`. */
export function describeVersion(version: number): string {
  const [major, rest] = [Math.floor(version / 10_000), version % 10_000];
  return `${major}.${Math.floor(rest / 100)}.${rest % 100}`;
}

export function joinsOnOneCard(version: number): boolean {
  return version >= JOINS_ON_ONE_CARD;
}

export function gathersBy(version: number): GatheringBy {
  if (version >= ZERO_CTA) return "copy engines";
  return version >= REGISTERS ? "symmetric kernels" : "kernels";
}

/** True if NCCL_WIN_ENABLE=0 forbids registration. */
export function isWithoutWindows(environment: Environment): boolean {
  return environment.integer("NCCL_WIN_ENABLE") === 0;
}

/** The way in which NCCL gathers, as a sentence for the log. */
export function describeGathers(version: number, isSwitchedOff: boolean): string {
  const name = `NCCL ${describeVersion(version)}`;
  if (isSwitchedOff) return `${name} gathers by kernels, as NCCL_WIN_ENABLE is 0`;
  const ways = {
    "copy engines": "gathers by copy engines between symmetric memory, where cards reach each other so",
    "symmetric kernels":
      "gathers by kernels between symmetric memory, where cards reach each other so; from 2.28 on by copy engines",
    kernels: "gathers by kernels; from 2.28 on by copy engines between symmetric memory",
  };
  return `${name} ${ways[gathersBy(version)]}`;
}
