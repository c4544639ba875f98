/**
 * Parameters: tensors with a name, an initialization, a gradient and a storage. The storage says which elements this rank
 * keeps and where the optimizer finds them; an unsharded parameter keeps all of them and is its own storage. So optimizers,
 * checkpoints, DDP and FSDP meet here and need not know each other.
 *
 * @module
 */
import type { GradientSink } from "../autograd/node.ts";
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, NO_PTR } from "../device/device.ts";
import { type DType, float32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { denseLayout, numelOf, type Shape } from "../shape.ts";
import { GradientSlot } from "./gradient_slot.ts";
import { Tensor } from "./tensor.ts";

/** How a parameter begins; every element depends on the seed, the parameter's FQN and its place only. */
export type Init =
  | { readonly kind: "normal"; readonly mean: number; readonly std: number }
  | { readonly kind: "uniform"; readonly low: number; readonly high: number }
  | { readonly kind: "constant"; readonly value: number };

/** Which elements of a parameter this rank keeps: a contiguous run of the row-major whole. */
export interface ShardLayout {
  /** Shape of the whole parameter. */
  readonly shape: Shape;
  /** First element kept. */
  readonly offset: number;
  /** How many are kept; may be 0. */
  readonly length: number;
}

/** Flat float32 memory that holds this rank's elements of some parameters, and that an optimizer updates in one call. */
export interface ParameterRun {
  readonly device: Device;
  /** Elements, alignment gaps included. */
  readonly length: number;
  readonly param: DevicePtr;
  /** Gradients, laid out like `param`; read only while some parameter of the run has one. */
  readonly grad: DevicePtr;
  /** Waits until nobody reads the memory any more. */
  beginWrite(): void;
  /** Makes what was written visible to whoever reads it. */
  endWrite(): void;
}

/** Adds up the parts of a norm that other ranks hold: in place, exactly. */
export interface NormReducer {
  /** @param accumulators int64 limbs of exact accumulators @param limbs how many */
  sumLimbs(accumulators: DevicePtr, limbs: number): void;
}

/** Where a parameter's own elements and gradient lie. */
export interface ParameterStorage {
  readonly shard: ShardLayout;
  readonly run: ParameterRun;
  /** First element of this parameter in the run. */
  readonly runOffset: number;
  /** Where the backward pass delivers gradients of the whole parameter. */
  readonly sink: GradientSink;
  /** Undefined when every rank holds the whole gradient. */
  readonly normReducer: NormReducer | undefined;
  /** Gradient of this rank's elements, or undefined when there is none. The storage keeps the handle. */
  gradient(): Tensor | undefined;
  clearGradient(): void;
}

/** The whole parameter on this rank: its own run. */
class WholeStorage implements ParameterStorage, ParameterRun {
  readonly shard: ShardLayout;
  readonly length: number;
  readonly runOffset = 0;
  readonly normReducer = undefined;
  readonly device: Device;
  readonly #buffer: Buffer;
  #sink: GradientSlot = new GradientSlot();
  /** Whether gradients have a place outside: in a bucket. */
  #placed = false;
  /** The gradient that was reduced over ranks already, where it has a place outside. */
  #reduced: Tensor | undefined;

  constructor(buffer: Buffer, shape: Shape) {
    this.#buffer = buffer;
    this.device = buffer.device;
    this.length = numelOf(shape);
    this.shard = { shape, offset: 0, length: this.length };
  }

  get sink(): GradientSlot {
    return this.#sink;
  }
  get placed(): boolean {
    return this.#placed;
  }

  get run(): ParameterRun {
    return this;
  }
  get param(): DevicePtr {
    return this.#buffer.ptr;
  }
  get grad(): DevicePtr {
    return this.gradient()?.ptr ?? NO_PTR;
  }
  beginWrite(): void {}
  endWrite(): void {}
  gradient(): Tensor | undefined {
    return this.#reduced ?? this.#sink.gradient();
  }
  clearGradient(): void {
    this.#sink.clear();
    this.#reduced?.dispose();
    this.#reduced = undefined;
  }

  /** Gradients get a place outside, or no longer; those there are go. */
  place(place: (() => Tensor) | undefined): void {
    this.clearGradient();
    this.#sink = new GradientSlot(place);
    this.#placed = place !== undefined;
  }

  /** What the sink held has been reduced: `sum` is the gradient of all reductions so far. */
  adoptReduced(sum: Tensor): void {
    this.#sink.clear();
    this.#reduced?.dispose();
    this.#reduced = sum;
  }
}

/** Name of a parameter that no root has named yet. */
const UNNAMED = "parameter";

/** Options of a parameter. */
export interface ParameterOptions {
  readonly init?: Init;
  /** Whether it is trained; true unless said otherwise. */
  readonly requiresGrad?: boolean;
}

/** A trained tensor of a module. It has no memory until it is initialized, loaded or unsharded. */
export class Parameter extends Tensor {
  /** Fully qualified name from the root module, in Hugging Face's spelling; given when the root is built. */
  fqn: string = UNNAMED;
  /** How it begins. */
  readonly init: Init;
  #storage: ParameterStorage;
  #trainable: boolean;

  /**
   * @param device where it will live
   * @param shape its shape; float32
   */
  constructor(device: Device, shape: Shape, options: ParameterOptions = {}) {
    const buffer = Buffer.empty(device, numelOf(shape) * float32.byteLength, "parameter");
    super(buffer, denseLayout(shape), float32);
    this.init = options.init ?? { kind: "constant", value: 0 };
    this.#storage = new WholeStorage(buffer, shape);
    this.#trainable = options.requiresGrad ?? true;
    if (this.#trainable) this.asLeaf(this.#storage.sink);
  }

  /** Whether it has a name yet. */
  get named(): boolean {
    return this.fqn !== UNNAMED;
  }

  /** Which elements this rank keeps, and where. */
  get storage(): ParameterStorage {
    return this.#storage;
  }

  /** Names it, and its memory where that is its own, for messages. */
  rename(fqn: string): void {
    this.fqn = fqn;
    if (this.#storage instanceof WholeStorage) this.buffer.owner = fqn;
  }

  /** Gradient of the elements that this rank keeps: of the whole shape, or flat where sharded. */
  get grad(): Tensor | undefined {
    return this.#storage.gradient();
  }

  /** Drops the gradient. */
  zeroGrad(): void {
    this.#storage.clearGradient();
  }

  /** Whether it is trained. */
  get trainable(): boolean {
    return this.#trainable;
  }

  /** Stops (or resumes) training it. */
  set trainable(trainable: boolean) {
    this.#trainable = trainable;
    this.asLeaf(trainable ? this.#storage.sink : undefined);
  }

  /** Gives an unsharded parameter its memory, uninitialized; does nothing when it has it. */
  materialize(): void {
    if (!this.buffer.attached && this.#storage instanceof WholeStorage) this.buffer.attach();
  }

  /**
   * Writes first gradients straight to where `place` says, or no longer. Used by DDP for its buckets.
   *
   * @throws {ArgumentError} if it is sharded, or replicated already
   */
  placeGradients(place: (() => Tensor) | undefined): void {
    if (place !== undefined) this.requirePlain("replicate");
    if (this.#storage instanceof WholeStorage) this.#storage.place(place);
    this.trainable = this.#trainable;
  }

  /** Gradient that was not reduced over ranks yet, where it has a place outside. Used by DDP. */
  get unreducedGradient(): Tensor | undefined {
    return this.#storage instanceof WholeStorage ? this.#storage.sink.gradient() : undefined;
  }

  /** Says that its gradient was reduced: `sum` holds all reductions so far. Used by DDP; the handle becomes the storage's. */
  adoptReducedGradient(sum: Tensor): void {
    if (this.#storage instanceof WholeStorage) this.#storage.adoptReduced(sum);
  }

  /**
   * Hands its elements to a sharded storage. Used by FSDP.
   *
   * @param buffer what the whole parameter is gathered into; one reference becomes this tensor's
   * @param offset its first element there
   * @param dtype compute dtype
   * @throws {ArgumentError} if it is sharded already, or replicated
   */
  shardInto(storage: ParameterStorage, buffer: Buffer, offset: number, dtype: DType): void {
    this.requirePlain("shard");
    this.zeroGrad();
    this.rebind(buffer, denseLayout(this.shape, offset), dtype);
    this.#storage = storage;
    this.trainable = this.#trainable;
  }

  /**
   * Refuses a parameter that is sharded or replicated: check all of a module before changing any.
   *
   * @throws {ArgumentError} naming it
   */
  requirePlain(verb: "shard" | "replicate"): void {
    const storage = this.#storage;
    if (storage instanceof WholeStorage && !storage.placed) return;
    const state = storage instanceof WholeStorage ? "replicated" : "sharded";
    throw new ArgumentError(`Cannot ${verb} '${this.fqn}': it is ${state} already`);
  }
}
