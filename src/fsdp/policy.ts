/**
 * What a user decides about sharding.
 *
 * @module
 */
import type { DeviceMesh } from "../comm/mesh.ts";
import type { Phase } from "../comm/call.ts";
import type { Work } from "../comm/data_plane.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import type { ReduceScatterOptions } from "../comm/reductions.ts";
import type { DevicePtr } from "../device/device.ts";
import type { DType } from "../dtype.ts";
import type { OffloadPolicy } from "../parallel/offload.ts";
import { type MixedPrecision, type ResolvedPrecision, resolvePrecision } from "../parallel/precision.ts";
import { type ShardRanks, shardRanksOf } from "../parallel/ranks.ts";
import type { Shape } from "../shape.ts";
import type { Parameter } from "../tensor/parameter.ts";
import type { Tensor } from "../tensor/tensor.ts";

/** A gather of one unit, or of a part of it with a dtype or a cut of its own. */
export interface AllGatherCall {
  /** The ranks that share the parameters. */
  readonly group: ProcessGroup;
  /** This rank's shard: `byteLength` bytes. */
  readonly src: DevicePtr;
  /** Where the shards of all ranks go, in the order of the ranks. */
  readonly dst: DevicePtr;
  /** Length of a rank's shard. */
  readonly byteLength: number;
  /** Name of what is gathered. */
  readonly unit: string;
  /** Whether a forward or a backward needs it. */
  readonly phase: Phase;
}

/** A reduction of one unit, or of a part of it: as `ProcessGroup.reduceScatter`. */
export interface ReduceScatterCall extends ReduceScatterOptions {
  /** The ranks that share the parameters. */
  readonly group: ProcessGroup;
  /** Name of what is reduced. */
  readonly unit: string;
  /** The backward. */
  readonly phase: Phase;
}

/** What moves a unit's parameters and gradients in place of the library (PyTorch's `Comm`). */
export interface CustomCollectives {
  /** Gathers the shards of all ranks; undefined: the library does. */
  allGather: ((call: AllGatherCall) => Work) | undefined;
  /** Sums gradients into the ranks' shards; undefined: the library does. */
  reduceScatter: ((call: ReduceScatterCall) => Work) | undefined;
  /** Gets this rank's shard of the reduced gradients, flat float32, before they are added to earlier ones; with replicas, summed over them. */
  allReduceHook: ((reduced: Tensor) => void) | undefined;
}

/** What an extension is told of a parameter that it gathers. */
export interface GatherContext {
  /** The ranks that share the parameter. */
  readonly group: ProcessGroup;
  /** Shape of the whole parameter. */
  readonly shape: Shape;
  /** Shape of the first rank's chunk; of the others none is larger. */
  readonly chunkShape: Shape;
  /** What is computed in. */
  readonly paramDtype: DType;
}

/** What an extension gives to be gathered. */
export interface GatherInputs<Metadata> {
  /** What is gathered: each input has one shape and dtype on all ranks, so shorter ones must be padded. */
  readonly inputs: readonly Tensor[];
  /** Stays on this rank, for {@link GatherExtension.postAllGather}. */
  readonly metadata: Metadata;
}

/** Gathers a parameter in a form of its own, e.g. quantized (PyTorch's `fsdp_pre_all_gather` and `fsdp_post_all_gather`). */
export interface GatherExtension<Metadata = unknown> {
  /**
   * Gives what is gathered of a shard.
   *
   * @param shard this rank's chunk of the float32 values; of no elements where there are fewer chunks than ranks
   */
  preAllGather(shard: Tensor, context: GatherContext): GatherInputs<Metadata>;
  /**
   * Makes the whole parameter of what was gathered.
   *
   * @param outputs of each input those of all ranks: [ranks, …its shape]
   * @param out the whole parameter in `paramDtype`, to be written
   */
  postAllGather(outputs: readonly Tensor[], metadata: Metadata, out: Tensor): void;
}

/** What becomes of whole parameters after a forward; a number of ranks keeps them in as many parts. */
export type ReshardAfterForward = boolean | number | undefined;

/** Options of `fullyShard`. */
export interface FullyShardOptions {
  /**
   * The ranks that share the parameters: a mesh of one axis, also of an axis of a larger mesh, or a group. Of a mesh of two axes the
   * second shards, and the first holds copies of what is sharded (HSDP).
   */
  readonly mesh: DeviceMesh | ProcessGroup;
  /**
   * Whether parameters are freed after the forward and gathered again for the backward. Undefined: yes, except for the
   * root module, whose parameters the backward needs at once. A number n, which divides the ranks that share them, frees all but a
   * part: neighbours of n ranks each keep an n-th, and the backward gathers among them only; 1 is false, and all ranks are true.
   */
  readonly reshardAfterForward?: ReshardAfterForward;
  /** Dtypes of the unit. */
  readonly precision?: MixedPrecision | undefined;
  /**
   * Whether the backward gathers the next unit while one computes. Undefined: no. CPU transports copy when asked, so there
   * it only costs a second unit's memory.
   */
  readonly backwardPrefetch?: boolean;
  /** Parameters that stay as they are: neither sharded nor reduced. Another parallelism may take them. */
  readonly ignoredParameters?: Iterable<Parameter>;
  /**
   * The dim that a parameter is cut along, as PyTorch cuts it; undefined: flat, with the others of its unit. Each parameter that is
   * cut along a dim is gathered and reduced on its own; dims but the first must divide evenly.
   */
  readonly shardPlacement?: (parameter: Parameter) => number | undefined;
  /** Where shards, their gradients and optimizer states lie. @default on the device */
  readonly offloadPolicy?: OffloadPolicy | undefined;
  /** What gathers a parameter in a form of its own; it is cut along dim 0 then, unless `shardPlacement` gives another one. */
  readonly gatherExtension?: (parameter: Parameter) => GatherExtension | undefined;
}

/** A policy with nothing left open but the root rule. */
export interface ResolvedPolicy
  extends ResolvedPrecision, ShardRanks, Required<Pick<FullyShardOptions, "shardPlacement" | "gatherExtension">> {
  readonly reshardAfterForward: ReshardAfterForward;
  readonly backwardPrefetch: boolean;
  readonly offloadPolicy: OffloadPolicy | undefined;
}

/**
 * Fills in the defaults.
 *
 * @throws {ArgumentError} for dtypes that nothing computes in
 * @throws {UnsupportedError} for a mesh of more than two axes, and for the bare group of one axis of a larger mesh
 */
export function resolvePolicy(options: FullyShardOptions): ResolvedPolicy {
  const { mesh, reshardAfterForward, precision, backwardPrefetch = false, offloadPolicy } = options;
  const { shardPlacement = () => undefined, gatherExtension = () => undefined } = options;
  const cuts = { shardPlacement, gatherExtension };
  const settings = { reshardAfterForward, backwardPrefetch, offloadPolicy };
  return { ...resolvePrecision(precision), ...shardRanksOf(mesh), ...cuts, ...settings };
}
