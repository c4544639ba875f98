/**
 * Parameters: tensors with a name, an initialization, a gradient and a storage. The storage says which elements this rank
 * keeps, where the optimizer finds them and where gradients go. A plain parameter keeps all of itself; a parallelism gives
 * it another storage by {@link Parameter.adopt}. So optimizers, checkpoints, DDP and FSDP meet here and need not know each other.
 *
 * @module
 */
import type { GradientSink } from "../autograd/node.ts";
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, NO_PTR } from "../device/device.ts";
import type { StatePool } from "../device/state_pool.ts";
import { type DType, float32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { denseLayout, type Layout, numelOf, type Shape } from "../shape.ts";
import { globalLayout, largestPart, partShape, type Placement } from "./cut.ts";
import { GradientSlot } from "./gradient_slot.ts";
import type { HostArray } from "./host.ts";
import { type NormReducer, reduceOver } from "./norm_reducer.ts";
import { fullLayout, type ShardLayout } from "./shard_layout.ts";
import { Tensor } from "./tensor.ts";

/** How a parameter begins; every element depends on the seed, the parameter's FQN and its place only. */
export type Init =
  | { readonly kind: "normal"; readonly mean: number; readonly std: number }
  | { readonly kind: "uniform"; readonly low: number; readonly high: number }
  /** The logarithm of what is uniform. */
  | { readonly kind: "logUniform"; readonly low: number; readonly high: number }
  | { readonly kind: "constant"; readonly value: number };

/** Flat float32 memory that holds this rank's elements of some parameters, and that an optimizer updates in one call. */
export interface FlatShard {
  /** Where the memory lies: not always the device that the parameters are computed on. */
  readonly device: Device;
  /** Where optimizer states rest between updates. @default on the device */
  readonly statePool?: StatePool | undefined;
  /** Elements, alignment gaps included. */
  readonly length: number;
  /** Where the elements lie. */
  readonly param: DevicePtr;
  /** Gradients, laid out like `param`; read only while some parameter in the shard has one. */
  readonly grad: DevicePtr;
  /** Waits until no rank reads the memory any more. */
  beginWrite(): void;
  /** Makes written values visible to every reader. */
  endWrite(): void;
}

/** Sums gradients over ranks at the end of a backward. */
export interface GradientReducer {
  /** Whether the next backward reduces gradients; without, they add up on each rank (PyTorch's `no_sync`). */
  requiresGradientSync: boolean;
  /** What sums are divided by; the number of ranks at first. */
  gradientDivideFactor: number;
  /** The ranks that gradients are summed over, as the first group counts them. */
  readonly worldRanks: readonly number[];
}

/** How a parameter takes part in a parallelism. */
export type StorageKind = "plain" | "replicated" | "sharded";

/** Where a parameter's own elements and gradient lie. */
export interface ParameterStorage {
  /** Which parallelism keeps it. */
  readonly kind: StorageKind;
  /** The elements of the global tensor that this rank keeps, and their place in the flat shard. */
  readonly shard: ShardLayout;
  /** The memory that holds them, alone or beside those of other parameters. */
  readonly flatShard: FlatShard;
  /** Where the backward pass delivers gradients of the whole parameter. */
  readonly sink: GradientSink;
  /** What reduces the gradient; undefined for a plain parameter. */
  readonly reducer: GradientReducer | undefined;
  /** Adds up norms over the ranks that hold other elements; undefined where every rank holds the whole gradient. */
  readonly normReducer: NormReducer | undefined;
  /** Whether the elements have values. */
  hasValues(): boolean;
  /** The elements are about to be written: gives them memory where they have none. */
  materialize(): void;
  /** Forgets the values, and gives memory back that only they need. */
  vacate(): void;
  /** Whether a backward has left gradients that were not reduced. */
  hasUnreduced(): boolean;
  /** Gradient of this rank's elements, or undefined when there is none. The storage keeps the handle. */
  gradient(): Tensor | undefined;
  /** Forgets the gradient. */
  clearGradient(): void;
}

/** The storage of a parameter in no parallelism. Its flat shard lasts when it is replicated, and so do optimizer states. */
function plainStorage(parameter: Parameter, buffer: Buffer): ParameterStorage {
  const sink = new GradientSlot({ onFinish: () => parameter.announceGradient() });
  const flatShard: FlatShard = {
    device: buffer.device,
    length: parameter.numel,
    get param() {
      return buffer.ptr;
    },
    get grad() {
      return parameter.grad?.ptr ?? NO_PTR;
    },
    beginWrite: () => {},
    endWrite: () => void buffer.version++,
  };
  return {
    kind: "plain",
    shard: parameter.globalLayout(fullLayout(parameter.shape)),
    flatShard,
    sink,
    reducer: undefined,
    normReducer: reduceOver(parameter.placements.map(({ axis }) => axis.normReducer)),
    hasValues: () => buffer.attached,
    materialize() {
      if (!buffer.attached) buffer.attach();
    },
    vacate: () => buffer.detach(),
    hasUnreduced: () => false,
    gradient: () => sink.gradient(),
    clearGradient: () => sink.clear(),
  };
}

/** Memory that a parameter's unsharded values are read from. */
export interface ComputeView {
  /** One reference on it becomes the parameter's. */
  readonly buffer: Buffer;
  /** Where the elements lie in the buffer. */
  readonly layout: Layout;
  /** What is computed in. */
  readonly dtype: DType;
}

/** Gets a parameter whose gradient is complete. */
export type GradientListener = (parameter: Parameter) => void;

/** Name of a parameter that no root has named yet. */
const UNNAMED = "parameter";

/** Options of a parameter. */
export interface ParameterOptions {
  /**
   * What it begins as.
   *
   * @default all zero
   */
  readonly init?: Init;
  /** Whether the parameter is trained. @default true */
  readonly requiresGrad?: boolean;
}

/** A trained tensor of a module. It has no memory until it is initialized, loaded or unsharded. */
export class Parameter extends Tensor {
  /** Fully qualified name from the root module, in Hugging Face's spelling; given when the root is built. */
  fqn: string = UNNAMED;
  /** How the parameter's first values are drawn. */
  readonly init: Init;
  /** Shape of the tensor that files and optimizers' states have; {@link shape} is that of this rank's part. */
  readonly globalShape: Shape;
  #placements: readonly Placement[] = [];
  /** The parameter's own memory, which holds its master values until it is sharded. */
  #own: Buffer;
  #plain: ParameterStorage;
  #storage: ParameterStorage;
  #requiresGrad: boolean;
  readonly #gradientHooks = new Set<GradientListener>();

  /**
   * Makes the parameter, without memory.
   *
   * @param device where it is computed with
   * @param shape its shape; float32
   */
  constructor(device: Device, shape: Shape, options: ParameterOptions = {}) {
    const buffer = Buffer.empty(device, numelOf(shape) * float32.byteLength, "parameter", "parameters");
    super(buffer, denseLayout(shape), float32);
    this.globalShape = shape;
    this.init = options.init ?? { kind: "constant", value: 0 };
    this.#own = buffer;
    this.#plain = plainStorage(this, buffer);
    this.#storage = this.#plain;
    this.#requiresGrad = options.requiresGrad ?? true;
    this.requiresGrad = this.#requiresGrad;
  }

  /** How the global tensor is cut into parts of which this rank has one; empty where each rank has the whole. */
  get placements(): readonly Placement[] {
    return this.#placements;
  }

  /** Elements of the largest part on any rank, of this shape where nothing is cut. */
  get largestNumel(): number {
    return largestPart(this.globalShape, this.#placements);
  }

  /** What a layout of this rank's part is of the global tensor. */
  globalLayout(layout: ShardLayout): ShardLayout {
    return globalLayout(this.globalShape, this.#placements, layout);
  }

  /**
   * Becomes a part of its global tensor. Used by parallelisms, which check first: see `cutParameters`.
   *
   * @throws {ArgumentError} if it is not plain, or has values
   */
  place(placements: readonly Placement[]): void {
    this.requirePlain("cut");
    if (this.#own.attached) throw new ArgumentError(`Cannot cut '${this.fqn}': it has values`);
    this.zeroGrad();
    this.#placements = placements;
    const shape = placements.reduce<Shape>((part, one) => partShape(part, one), this.globalShape);
    this.#own = Buffer.empty(this.device, numelOf(shape) * float32.byteLength, this.#own.owner, "parameters");
    this.rebind(this.#own, denseLayout(shape), float32);
    this.#plain = plainStorage(this, this.#own);
    this.#storage = this.#plain;
    this.requiresGrad = this.#requiresGrad;
  }

  /** Whether the parameter has a name yet. */
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
    if (this.#storage.kind !== "sharded") this.#own.owner = fqn;
  }

  /** Gradient of the elements that this rank keeps: of the whole shape, or flat where sharded. */
  get grad(): Tensor | undefined {
    return this.#storage.gradient();
  }

  /**
   * Calls `hook` at the end of each backward that has given it a gradient, reduced where there are ranks (PyTorch's
   * `register_post_accumulate_grad_hook`): an optimizer that steps and drops the gradient there keeps none between backwards.
   *
   * @returns ends that
   */
  registerPostAccumulateGradHook(hook: GradientListener): () => void {
    this.#gradientHooks.add(hook);
    return () => void this.#gradientHooks.delete(hook);
  }

  /** The gradient of a backward is complete: tells those who wait for it. Used by storages. */
  announceGradient(): void {
    for (const hook of this.#gradientHooks) hook(this);
  }

  /** Drops the gradient. */
  zeroGrad(): void {
    this.#storage.clearGradient();
  }

  /** Whether the parameter is trained. */
  override get requiresGrad(): boolean {
    return this.#requiresGrad;
  }

  /** Stops (or resumes) training it. */
  override set requiresGrad(trainable: boolean) {
    this.#requiresGrad = trainable;
    const { shape, dtype } = this;
    this.setEdge(trainable ? { node: undefined, index: 0, sink: this.#storage.sink, shape, dtype } : undefined);
  }

  /** Gives it memory, uninitialized, where it has none. */
  materialize(): void {
    this.#storage.materialize();
  }

  /**
   * Refuses to read values that were never written.
   *
   * @throws {ArgumentError} naming it
   */
  requireValues(): void {
    if (this.#storage.hasValues()) return;
    throw new ArgumentError(
      `'${this.fqn}' has no values: call model.load(), initializeParameters, loadHfWeights or loadCheckpoint first`,
    );
  }

  /** Copies values as for any tensor; a sharded parameter keeps them elsewhere, which `writeParameters` reaches. */
  override copyFromHost(values: HostArray): this {
    if (this.#storage.kind !== "sharded") return super.copyFromHost(values);
    throw new ArgumentError(`Cannot copy into '${this.fqn}', which is sharded: use writeParameters on all ranks`);
  }

  /**
   * Takes another storage; the gradient is dropped. Used by parallelisms.
   *
   * @param computeView where whole values are computed with from now on, if not in the parameter's own memory; that goes when it is
   * sharded, and stays when it is replicated
   * @throws {ArgumentError} if the storage is not its own: see {@link requirePlain}
   */
  adopt(storage: ParameterStorage, computeView?: ComputeView): void {
    this.requirePlain(storage.kind === "sharded" ? "shard" : "replicate");
    this.zeroGrad();
    this.#storage = storage;
    if (computeView !== undefined) {
      if (storage.kind === "replicated") this.#own.retain();
      this.rebind(computeView.buffer, computeView.layout, computeView.dtype);
    }
    this.requiresGrad = this.#requiresGrad;
  }

  /** Memory for its whole values, uninitialized, for {@link takePlain}. Used by parallelisms. */
  allocatePlain(): Buffer {
    return Buffer.allocate(this.device, this.numel * float32.byteLength, this.fqn, "parameters");
  }

  /** Takes over memory with its whole values. It must be plain, and have none. Used by parallelisms. */
  takePlain(own: Buffer): void {
    this.requirePlain("shard");
    this.zeroGrad();
    this.#own = own;
    this.#plain = plainStorage(this, own);
    this.rebind(own, denseLayout(this.shape), float32);
    this.#storage = this.#plain;
    this.requiresGrad = this.#requiresGrad;
  }

  /** Makes it a plain parameter again, without a gradient; one that was sharded has no memory then. Used by parallelisms. */
  release(): void {
    this.zeroGrad();
    if (this.#storage.kind === "sharded") {
      this.#own = Buffer.empty(this.device, this.numel * float32.byteLength, this.fqn, "parameters");
      this.#plain = plainStorage(this, this.#own);
    }
    if (this.buffer !== this.#own) this.rebind(this.#own, denseLayout(this.shape), float32);
    this.#storage = this.#plain;
    this.requiresGrad = this.#requiresGrad;
  }

  /**
   * Refuses a parameter that is sharded or replicated: check all of a module before changing any.
   *
   * @throws {ArgumentError} naming it
   */
  requirePlain(verb: "shard" | "replicate" | "cut"): void {
    const { kind } = this.#storage;
    if (kind !== "plain") throw new ArgumentError(`Cannot ${verb} '${this.fqn}': it is ${kind} already`);
  }
}
