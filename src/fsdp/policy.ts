/**
 * Options of sharding, and functions that a user can give for gathers and reductions.
 *
 * @module
 */
import { requireSwitch } from "../config/known_values.ts";
import type { DeviceMesh } from "../comm/mesh.ts";
import type { Phase } from "../comm/call.ts";
import type { Work } from "../comm/data_plane.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import type { ReduceScatterOptions } from "../comm/reductions.ts";
import type { DevicePtr } from "../device/device.ts";
import type { DType } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import type { OffloadPolicy } from "../parallel/offload.ts";
import { type MixedPrecision, type ResolvedPrecision, resolvePrecision } from "../parallel/precision.ts";
import { type ShardRanks, shardRanksOf } from "../parallel/ranks.ts";
import type { Shape } from "../shape.ts";
import type { Parameter } from "../tensor/parameter.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { valueText } from "../words.ts";

/** A gather of one segment of a unit. */
export interface AllGatherCall {
  /** The ranks that share the parameters. */
  readonly group: ProcessGroup;
  /** This rank's shard: `byteLength` bytes. */
  readonly src: DevicePtr;
  /** Memory for the shards of all ranks, in the order of the ranks. */
  readonly dst: DevicePtr;
  /** Length of a rank's shard. */
  readonly byteLength: number;
  /** Name of the segment. */
  readonly unit: string;
  /** The forward or backward that needs it. */
  readonly phase: Phase;
}

/** A reduction of one segment of a unit, as `ProcessGroup.reduceScatter` takes it. */
export interface ReduceScatterCall extends ReduceScatterOptions {
  /** The ranks that share the parameters. */
  readonly group: ProcessGroup;
  /** Name of the segment. */
  readonly unit: string;
  /** The backward. */
  readonly phase: Phase;
}

/** Functions that move a unit's parameters and gradients in place of the library (PyTorch's `Comm`). */
export interface CustomCollectives {
  /** Gathers the shards of all ranks. Undefined: the library does. The function must not unshard or reshard the unit. */
  allGather: ((call: AllGatherCall) => Work) | undefined;
  /** Sums gradients into the ranks' shards. Undefined: the library does. */
  reduceScatter: ((call: ReduceScatterCall) => Work) | undefined;
  /**
   * Receives this rank's shard of the sums, [elements of the shard] in float32, before it is added to earlier sums. With replicas, it
   * is already summed over them.
   */
  allReduceHook: ((reduced: Tensor) => void) | undefined;
}

/** The parameter that an extension gathers. */
export interface GatherContext {
  /** The ranks that share the parameter. */
  readonly group: ProcessGroup;
  /** Shape of the unsharded parameter. */
  readonly shape: Shape;
  /** Shape of the first rank's chunk; no other rank's chunk is larger. */
  readonly chunkShape: Shape;
  /** The dtype that is computed in. */
  readonly paramDtype: DType;
}

/** Tensors that an extension gives to be gathered. */
export interface GatherInputs<Metadata> {
  /** The tensors. Each has the same shape and dtype on all ranks, so a shorter chunk must be padded. */
  readonly inputs: readonly Tensor[];
  /** A value that stays on this rank, for {@link GatherExtension.postAllGather}. */
  readonly metadata: Metadata;
}

/** Gathers a parameter in a form of its own, e.g. quantized (PyTorch's `fsdp_pre_all_gather` and `fsdp_post_all_gather`). */
export interface GatherExtension<Metadata = unknown> {
  /**
   * Gives the tensors that are gathered in place of a shard.
   *
   * @param shard this rank's chunk of the float32 values; of no elements where there are fewer chunks than ranks
   */
  preAllGather(shard: Tensor, context: GatherContext): GatherInputs<Metadata>;
  /**
   * Makes the unsharded parameter of the gathered tensors.
   *
   * @param outputs for each input, the tensors of all ranks as one: [ranks, …shape of the input]
   * @param out the unsharded parameter in `paramDtype`, to be written
   */
  postAllGather(outputs: readonly Tensor[], metadata: Metadata, out: Tensor): void;
}

/**
 * The unsharded parameters after a forward: true frees them, false keeps them. A number n reshards them over n ranks, each of which
 * keeps its shard of them. Undefined: false for a root, true for the units below it.
 */
export type ReshardAfterForward = boolean | number | undefined;

/** Options of `fullyShard`. */
export interface FullyShardOptions {
  /**
   * The ranks that share the parameters: a mesh of one axis, also an axis of a larger mesh, or a group. With a mesh of two axes,
   * parameters are sharded along the second and replicated along the first (HSDP).
   */
  readonly mesh: DeviceMesh | ProcessGroup;
  /**
   * True frees the parameters after the forward, and gathers them again for the backward; false keeps them. Undefined is false for
   * the root module, whose parameters the backward needs at once, and true for others. A number n reshards over n neighbouring
   * ranks, each of which keeps its shard, and the backward gathers among these. It must divide the ranks that share the parameters; 1
   * is false, and the number of all ranks is true.
   */
  readonly reshardAfterForward?: ReshardAfterForward;
  /** Dtypes of the unit. */
  readonly precision?: MixedPrecision | undefined;
  /**
   * True: the backward of a unit starts the gather of the unit that comes next. On one host of CPU ranks the gather ends within the
   * call, so there it only costs the memory of a second unit; between hosts of MPI it goes on while the unit computes.
   *
   * @default false
   */
  readonly backwardPrefetch?: boolean;
  /** Parameters that are neither sharded nor reduced. Another parallelism may take them. */
  readonly ignoredParameters?: Iterable<Parameter>;
  /**
   * The dim that a parameter is cut along, as PyTorch does. Undefined: the parameter lies flat with the others of its unit. Each
   * parameter that is cut along a dim is gathered and reduced alone. Dims but the first must divide evenly.
   */
  readonly shardPlacement?: (parameter: Parameter) => number | undefined;
  /** Keeps shards, their gradients and optimizer states in host memory. @default on the device */
  readonly offloadPolicy?: OffloadPolicy | undefined;
  /** Gathers a parameter in a form of its own. The parameter is cut along dim 0, unless `shardPlacement` gives another dim. */
  readonly gatherExtension?: (parameter: Parameter) => GatherExtension | undefined;
}

/** A policy with all defaults but the root's `reshardAfterForward`. */
export interface ResolvedPolicy
  extends ResolvedPrecision, ShardRanks, Required<Pick<FullyShardOptions, "shardPlacement" | "gatherExtension">> {
  readonly reshardAfterForward: ReshardAfterForward;
  readonly backwardPrefetch: boolean;
  readonly offloadPolicy: OffloadPolicy | undefined;
}

/** Refuses values of a wrong type, which would count as true. @throws {ArgumentError} naming the option and the value */
function requireSettings(options: FullyShardOptions): void {
  const refuse = (option: string, value: unknown, expected: string): never => {
    throw new ArgumentError(`Cannot shard with ${option} ${valueText(value)}: expected ${expected}`);
  };
  const { reshardAfterForward: reshard, backwardPrefetch, offloadPolicy, shardPlacement, gatherExtension } = options;
  if (!["boolean", "number", "undefined"].includes(typeof reshard)) {
    refuse("reshardAfterForward", reshard, "true, false or a number of ranks");
  }
  requireSwitch("shard", "backwardPrefetch", backwardPrefetch);
  if (offloadPolicy !== undefined && offloadPolicy?.kind !== "cpu") {
    refuse("offloadPolicy", offloadPolicy, "what cpuOffloadPolicy() gives");
  }
  for (const [name, value] of Object.entries({ shardPlacement, gatherExtension })) {
    if (!["function", "undefined"].includes(typeof value)) refuse(name, value, "a function of a parameter");
  }
}

/**
 * Fills in the defaults.
 *
 * @throws {ArgumentError} for dtypes that nothing computes in, and for values of a wrong type
 * @throws {UnsupportedError} for a mesh of more than two axes, and for the bare group of one axis of a larger mesh
 */
export function resolvePolicy(options: FullyShardOptions): ResolvedPolicy {
  const { mesh, reshardAfterForward, precision, backwardPrefetch = false, offloadPolicy } = options;
  requireSettings(options);
  const { shardPlacement = () => undefined, gatherExtension = () => undefined } = options;
  const cuts = { shardPlacement, gatherExtension };
  const settings = { reshardAfterForward, backwardPrefetch, offloadPolicy };
  return { ...resolvePrecision(precision), ...shardRanksOf(mesh), ...cuts, ...settings };
}
