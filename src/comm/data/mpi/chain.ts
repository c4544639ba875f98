/**
 * Sizes of sums that go from host to host: see Note [Two levels] in `two_levels.ts`. Dry runs use the same.
 *
 * @module
 */
import { at } from "../../../at.ts";
import { type DType, float32, int64 } from "../../../dtype.ts";
import type { ElementRange } from "../../data_plane.ts";
import type { HostOrder } from "./turns.ts";

/** Elements of a partial sum that travel together. */
export const CHAIN_ELEMENTS: number = 2 ** 17;

/** Partial sums of a rank that are under way at a time. */
export const UNDER_WAY = 4;

/** The dtype of partial sums. */
export function partialOf(dtype: DType): DType {
  return dtype === int64 ? int64 : float32;
}

/** True if a chain sends fewer bytes between hosts than all ranks do to each other; the same on all ranks. */
export function isChainShorter({ hosts, hostOf }: HostOrder, slices: readonly ElementRange[], dtype: DType): boolean {
  let [chain, flat] = [0, 0];
  for (const [rank, { length }] of slices.entries()) {
    const host = at(hostOf, rank, "host of rank");
    const hops = hosts.length - 1 + (host === hosts.length - 1 ? 0 : 1);
    chain += length * partialOf(dtype).byteLength * hops;
    flat += length * dtype.byteLength * (slices.length - at(hosts, host, "ranks of host").length);
  }
  return chain < flat;
}
