/**
 * The contract by which each data plane tells a dry run its memory: what it allocates on the device, and at which calls.
 *
 * @module
 */
import type { Device, DevicePtr } from "../../device/device.ts";
import type { DType } from "../../dtype.ts";
import type { ControlPlane } from "../control_plane.ts";
import type { AllReduceArgs, DataPlane } from "../data_plane.ts";
import type { StagingOptions } from "./sizes.ts";

/** Options on which the memory of a plane depends. */
export interface PlaneMemoryOptions extends StagingOptions {
  /** True if ranks of `nccl` register the memory into which they gather. @default false */
  readonly registersMemory?: boolean | undefined;
  /** Ranks on each host, where the plane shares memory within hosts and not between them. @default 1 */
  readonly ranksPerHost?: number | undefined;
  /** Bytes of a memory page; default 4096. */
  readonly pageBytes?: number | undefined;
}

/** The memory of one plane on one rank. Calls allocate what the plane allocates in them, and free what it frees. */
export interface PlaneMemory
  extends Pick<DataPlane, "stagingBytes" | "stagingRanks">, Required<Pick<DataPlane, "gatherMemory">>, Disposable {
  /** See {@link DataPlane.registersMemory}. */
  readonly registersMemory: boolean;
  /** Allocates this rank's part of a window; the caller frees it. */
  openWindow(byteLengths: readonly number[], owner: string): DevicePtr;
  /**
   * A reduce-scatter whose sums of this rank are `length` elements.
   *
   * @param isFinal the sums have the dtype of their destination and overwrite it
   * @returns true if it goes on until it is waited for, see `Work.endsInWait`
   */
  reduceScatter(length: number, dtype: DType, isFinal: boolean): boolean;
  /** An all-reduce. */
  allReduce(args: Pick<AllReduceArgs, "n" | "dtype" | "op">): void;
  /** The memory of a group that is split off. */
  split(control: PlaneRanks): PlaneMemory;
}

/** This rank, and the ranks of its group. */
export type PlaneRanks = Pick<ControlPlane, "rank" | "size" | "worldRanks">;

/** Allocates the memory that a plane has from its opening on. */
export type OpenPlaneMemory = (ranks: PlaneRanks, device: Device, options: PlaneMemoryOptions) => PlaneMemory;
