/**
 * The storage of a parameter: which elements a rank keeps, where the optimizer finds them, and where gradients are delivered. Optimizers,
 * checkpoints, DDP and FSDP share this contract and do not know each other.
 *
 * @module
 */
import type { GradientSink } from "../autograd/node.ts";
import type { Buffer } from "../device/buffer.ts";
import type { Device, DevicePtr } from "../device/device.ts";
import type { StatePool } from "../device/state_pool.ts";
import type { DType } from "../dtype.ts";
import type { Layout } from "../shape.ts";
import type { NormReducer } from "./norm_reducer.ts";
import type { ShardLayout } from "./shard_layout.ts";
import type { Tensor } from "./tensor.ts";

/** Flat memory of this rank's elements of some parameters, which an optimizer updates in one call if they are trained. */
export interface FlatShard {
  /** dtype of the elements at `param`: float32, or a narrower or quantized one of frozen parameters. */
  readonly dtype: DType;
  /** Device of the memory, which may differ from the device that computes with the parameters. */
  readonly device: Device;
  /** Storage of optimizer states between updates. @default the device */
  readonly statePool?: StatePool | undefined;
  /** Number of elements, with alignment gaps. */
  readonly length: number;
  /** Address of the elements. */
  readonly param: DevicePtr;
  /** Address of the gradients, in the same layout; read only while a parameter in the shard has one. */
  readonly grad: DevicePtr;
  /** Waits until no rank reads the memory any more. */
  beginWrite(): void;
  /** Makes written values visible to every reader. */
  endWrite(): void;
}

/** Sums gradients over ranks at the end of a backward. */
export interface GradientReducer {
  /** True if the next backward reduces gradients; if false, they add up on each rank (PyTorch's `no_sync`). */
  requiresGradientSync: boolean;
  /** Divisor of the sums; initially the number of ranks. */
  gradientDivideFactor: number;
  /** The ranks over which gradients are summed, as world ranks. */
  readonly worldRanks: readonly number[];
}

/** A message of bytes between this rank and another. */
export interface ShardMessage {
  /** Direction of the message. */
  readonly kind: "send" | "receive";
  /** Address of the bytes to send, or of the memory that receives them, on the device that computes with the parameter. */
  readonly ptr: DevicePtr;
  /** Length of the message. */
  readonly byteLength: number;
  /** The other rank. */
  readonly peer: number;
}

/** The ranks that keep different elements of the same parameters. */
export interface SharingRanks {
  /** This rank. */
  readonly rank: number;
  /** The number of ranks. */
  readonly size: number;
  /** Sends and receives side by side; messages to a rank keep their order. */
  transfer(messages: readonly ShardMessage[], unit: string): { wait(): void };
}

/** The ranks among which a parameter is divided. */
export interface Sharers {
  /** The ranks. */
  readonly ranks: SharingRanks;
  /** The elements of {@link Parameter.shape} that a rank keeps. */
  layoutOf(rank: number): ShardLayout;
}

/** Kinds of parallelism of a parameter; of one that is absent this rank keeps nothing. */
export type StorageKind = "plain" | "replicated" | "sharded" | "absent";

/** Memory of this rank's elements of a parameter, and of their gradient. */
export interface ParameterStorage {
  /** Kind of parallelism. */
  readonly kind: StorageKind;
  /** The elements of the global tensor that this rank keeps, and their place in the flat shard. */
  readonly shard: ShardLayout;
  /** Memory of the elements, alone or beside other parameters. */
  readonly flatShard: FlatShard;
  /** Receives the unsharded gradient from the backward pass. */
  readonly sink: GradientSink;
  /** Reduces the gradient; undefined for a plain parameter. */
  readonly reducer: GradientReducer | undefined;
  /** Sums norms over the ranks that hold other elements; undefined if every rank holds the full gradient. */
  readonly normReducer: NormReducer | undefined;
  /** The ranks that keep the other elements. @default this rank keeps all of its part of the global tensor */
  readonly sharers?: Sharers | undefined;
  /** True if the elements have values. */
  hasValues(): boolean;
  /** Called before the elements are written: allocates their memory if they have none. */
  materialize(): void;
  /** Drops the values, and frees memory that only they need. */
  vacate(): void;
  /** True if a backward has left gradients that were not reduced. */
  hasUnreduced(): boolean;
  /** Gradient of this rank's elements; undefined if there is none. The storage keeps the handle. */
  gradient(): Tensor | undefined;
  /** Drops the gradient. */
  clearGradient(): void;
}

/** Memory of a parameter's unsharded values, for computation. */
export interface ComputeView {
  /** The parameter takes over one reference on it. */
  readonly buffer: Buffer;
  /** Layout of the elements in the buffer. */
  readonly layout: Layout;
  /** dtype of the computation. */
  readonly dtype: DType;
}
