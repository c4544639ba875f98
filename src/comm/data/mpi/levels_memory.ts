/**
 * The memory of MPI's plane where ranks share hosts, as dry runs allocate it: the memory of the plane of shared
 * memory within the host, and the partial sums that go from host to host.
 *
 * @module
 */
import { at } from "../../../at.ts";
import type { DType } from "../../../dtype.ts";
import type { OpenPlaneMemory, PlaneMemory } from "../plane_memory.ts";
import { evenSlices } from "../sizes.ts";
import { openMappedMemory } from "../staged_memory.ts";
import { Scratch } from "../staging.ts";
import { CHAIN_ELEMENTS, isChainShorter, partialOf, UNDER_WAY } from "./chain.ts";
import { ONE_ROUND_BYTES, openMpiMemory } from "./memory.ts";
import { hostsOf, turnsOf } from "./turns.ts";

/** The memory of ranks that MPI joins. Hosts have equal numbers of ranks. */
export const openLevelsMemory: OpenPlaneMemory = (ranks, device, options) => {
  const { rank, size, worldRanks } = ranks;
  const { ranksPerHost = 1 } = options;
  const flat = openMpiMemory(ranks, device, options);
  const worldHosts = Array.from({ length: Math.max(...worldRanks) + 1 }, (_, one) => Math.floor(one / ranksPerHost));
  const order = hostsOf(worldRanks, worldHosts);
  if (order.hosts.every((members) => members.length === 1)) return flat;
  const host = at(order.hostOf, rank, "host of rank");
  const own = at(order.hosts, host, "ranks of host");
  const place = {
    rank: own.indexOf(rank),
    size: own.length,
    worldRanks: own.map((one) => at(worldRanks, one, "world rank of rank")),
  };
  const near = own.length === 1 ? undefined : openMappedMemory(place, device, options);
  const isOneHost = order.hosts.length === 1;
  const scratch = new Scratch(device.allocator);
  const numTurns = turnsOf(order, host).length;
  const reduceScatter = (length: number, dtype: DType, isFinal: boolean): boolean => {
    if (isOneHost) return near?.reduceScatter(length, dtype, isFinal) === true;
    // Slices are taken to be equally long.
    const slices = worldRanks.map((_, one) => ({ offset: one * length, length }));
    if (!isChainShorter(order, slices, dtype)) return flat.reduceScatter(length, dtype, isFinal);
    const partial = partialOf(dtype);
    const links = Math.ceil(length / CHAIN_ELEMENTS) * numTurns;
    for (let index = 0; index < Math.min(UNDER_WAY, links); index++) {
      scratch.of(index, CHAIN_ELEMENTS * partial.byteLength);
    }
    const isInPlace = isFinal && partial === dtype;
    if (host < order.hosts.length - 1 && length > 0 && !isInPlace) scratch.of(UNDER_WAY, length * partial.byteLength);
    return false;
  };
  return {
    stagingBytes: near === undefined ? 0 : near.stagingBytes,
    stagingRanks: own.length,
    registersMemory: false,
    gatherMemory: () => undefined,
    openWindow: (byteLengths, owner) =>
      near === undefined
        ? flat.openWindow(byteLengths, owner)
        : near.openWindow(own.map((one) => at(byteLengths, one, "part of rank")), owner),
    reduceScatter,
    allReduce(args): void {
      if (isOneHost) near?.allReduce(args);
      else if (args.op === "max" || args.n * args.dtype.byteLength <= ONE_ROUND_BYTES) flat.allReduce(args);
      else reduceScatter(at(evenSlices(args.n, size), rank, "slice of rank").length, args.dtype, true);
    },
    split: (part): PlaneMemory => openLevelsMemory(part, device, options),
    [Symbol.dispose](): void {
      scratch[Symbol.dispose]();
      near?.[Symbol.dispose]();
      flat[Symbol.dispose]();
    },
  };
};
