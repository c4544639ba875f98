/**
 * What a user decides about sharding.
 *
 * @module
 */
import type { DeviceMesh } from "../comm/mesh.ts";
import type { Phase } from "../comm/call.ts";
import type { Work } from "../comm/data_plane.ts";
import type { ProcessGroup, ReduceScatterOptions } from "../comm/process_group.ts";
import type { DevicePtr } from "../device/device.ts";
import { type MixedPrecision, type ResolvedPrecision, resolvePrecision } from "../parallel/precision.ts";
import { type ShardRanks, shardRanksOf } from "../parallel/ranks.ts";
import type { Parameter } from "../tensor/parameter.ts";
import type { Tensor } from "../tensor/tensor.ts";

/** A gather of one unit, or of a part of it with a dtype or a cut of its own. */
export interface AllGatherCall {
  /** The ranks that share the parameters. */
  readonly group: ProcessGroup;
  /** This rank's run: `byteLength` bytes. */
  readonly src: DevicePtr;
  /** Where all runs go, in the order of the ranks. */
  readonly dst: DevicePtr;
  readonly byteLength: number;
  /** Name of what is gathered. */
  readonly unit: string;
  readonly phase: Phase;
}

/** A reduction of one unit, or of a part of it: as `ProcessGroup.reduceScatter`. */
export interface ReduceScatterCall extends ReduceScatterOptions {
  /** The ranks that share the parameters. */
  readonly group: ProcessGroup;
  /** Name of what is reduced. */
  readonly unit: string;
  readonly phase: Phase;
}

/** What moves a unit's parameters and gradients in place of the library (PyTorch's `Comm`). */
export interface CustomCollectives {
  allGather: ((call: AllGatherCall) => Work) | undefined;
  reduceScatter: ((call: ReduceScatterCall) => Work) | undefined;
  /** Gets this rank's run of reduced gradients, flat float32, before they are added to earlier ones; with replicas, summed over them. */
  allReduceHook: ((reduced: Tensor) => void) | undefined;
}

/** What becomes of whole parameters after a forward; a number of ranks keeps them in as many parts. */
export type ReshardAfterForward = boolean | number | undefined;

/** Options of `fullyShard`. */
export interface FullyShardOptions {
  /**
   * The ranks that share the parameters: a mesh of one axis, or its group. Of a mesh of two axes the second shards, and the first
   * holds copies of what is sharded (HSDP).
   */
  readonly mesh: DeviceMesh | ProcessGroup;
  /**
   * Whether parameters are freed after the forward and gathered again for the backward. Undefined: yes, except for the
   * root module, whose parameters the backward needs at once. A number n, which divides the ranks that share them, frees all but a
   * part: neighbours of n ranks each keep an n-th, and the backward gathers among them only; 1 is false, and all ranks are true.
   */
  readonly reshardAfterForward?: ReshardAfterForward;
  /** Dtypes of the unit. */
  readonly precision?: MixedPrecision;
  /**
   * Whether the backward gathers the next unit while one computes. Undefined: no. CPU transports copy when asked, so there
   * it only costs a second unit's memory.
   */
  readonly backwardPrefetch?: boolean;
  /** Parameters that stay as they are: neither sharded nor reduced. Another parallelism may take them. */
  readonly ignoredParameters?: Iterable<Parameter>;
}

/** A policy with nothing left open but the root rule. */
export interface ResolvedPolicy extends ResolvedPrecision, ShardRanks {
  readonly reshardAfterForward: ReshardAfterForward;
  readonly backwardPrefetch: boolean;
}

/**
 * Fills in the defaults.
 *
 * @throws {ArgumentError} for dtypes that are not float32 or bfloat16
 * @throws {UnsupportedError} for a mesh of more than two axes, and for one axis of a larger mesh
 */
export function resolvePolicy(options: FullyShardOptions): ResolvedPolicy {
  const { mesh, reshardAfterForward, precision, backwardPrefetch = false } = options;
  return { ...resolvePrecision(precision), ...shardRanksOf(mesh), reshardAfterForward, backwardPrefetch };
}
