/**
 * What NCCL can do by its version. Copy engines and symmetric memory save what computes: without them the kernels of a gather take
 * multiprocessors from products. NCCL itself decides for each communicator whether its cards reach each other so that they serve.
 *
 * @module
 */
import type { NCCL_BINDINGS } from "../../ffi/bindings/nccl.ts";
import type { Library } from "../../ffi/types.ts";
import type { Environment } from "../../runtime/env.ts";

/** NCCL, loaded. */
export type Nccl = Library<typeof NCCL_BINDINGS>;

/** What moves a gather between memory that ranks have registered with each other, at best; `kernels` where nothing is registered. */
export type GatheringBy = "copy engines" | "symmetric kernels" | "kernels";

/** The first versions that register windows, have the zero-CTA policy, and join ranks on one card, as `ncclGetVersion` tells them. */
const [REGISTERS, ZERO_CTA, JOINS_ON_ONE_CARD] = [22_700, 22_800, 23_000];

/** Its version as it tells it, e.g. 22809. */
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

/** Whether a version can join ranks on one card. */
export function joinsOnOneCard(version: number): boolean {
  return version >= JOINS_ON_ONE_CARD;
}

/** What a version gathers by. */
export function gathersBy(version: number): GatheringBy {
  if (version >= ZERO_CTA) return "copy engines";
  return version >= REGISTERS ? "symmetric kernels" : "kernels";
}

/** Whether NCCL is told to register nothing. */
export function isWithoutWindows(environment: Environment): boolean {
  return environment.whole("NCCL_WIN_ENABLE") === 0;
}

/** What NCCL gathers by, in words for a reader of the log, who may have switched it off (`NCCL_WIN_ENABLE=0`). */
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
