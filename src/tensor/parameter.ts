/**
 * Parameters: tensors with a name, an initialization, a gradient and a storage. The storage says which elements this rank keeps,
 * where the optimizer finds them, and where gradients are delivered. A plain parameter keeps all of its elements; a parallelism
 * gives it another storage by {@link Parameter.adopt}. So optimizers, checkpoints, DDP and FSDP share this contract and do not
 * know each other.
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

/** Initialization of a parameter; each element depends only on the seed, the parameter's FQN and the element's index. */
export type Init =
  | { readonly kind: "normal"; readonly mean: number; readonly std: number }
  | { readonly kind: "uniform"; readonly low: number; readonly high: number }
  /** The logarithm of a uniform value. */
  | { readonly kind: "logUniform"; readonly low: number; readonly high: number }
  | { readonly kind: "constant"; readonly value: number };

/** Flat memory of this rank's elements of some parameters, which an optimizer updates in one call if they are trained. */
export interface FlatShard {
  /** dtype of the elements at `param`: float32, or a narrower one of frozen parameters. */
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
  /** The ranks that gradients are summed over, as the first group counts them. */
  readonly worldRanks: readonly number[];
}

/** Kinds of parallelism of a parameter. */
export type StorageKind = "plain" | "replicated" | "sharded";

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
  /** Adds up norms over the ranks that hold other elements; undefined where every rank holds the whole gradient. */
  readonly normReducer: NormReducer | undefined;
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

/** The storage of a parameter without parallelism. Its flat shard, and so its optimizer states, stay when it is replicated. */
function plainStorage(parameter: Parameter, buffer: Buffer): ParameterStorage {
  const sink = new GradientSlot({ onFinish: () => parameter.announceGradient() });
  const flatShard: FlatShard = {
    dtype: float32,
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

/** Memory of a parameter's unsharded values, for computation. */
export interface ComputeView {
  /** The parameter takes over one reference on it. */
  readonly buffer: Buffer;
  /** Layout of the elements in the buffer. */
  readonly layout: Layout;
  /** dtype of the computation. */
  readonly dtype: DType;
}

/** Called with a parameter whose gradient is complete. */
export type GradientListener = (parameter: Parameter) => void;

/** Name of a parameter that no root has named yet. */
const UNNAMED = "parameter";

/** Options of a parameter. */
export interface ParameterOptions {
  /**
   * Initialization.
   *
   * @default zeros
   */
  readonly init?: Init;
  /** True if the parameter is trained. @default true */
  readonly requiresGrad?: boolean;
}

/** A trained tensor of a module. It has no memory until it is initialized, loaded or unsharded. */
export class Parameter extends Tensor {
  /** Fully qualified name from the root module, in Hugging Face's spelling; given when the root is built. */
  fqn: string = UNNAMED;
  /** Distribution of the parameter's first values. */
  readonly init: Init;
  /**
   * dtype of its values where it is sharded while it is frozen, such as the dtype of its file. Trained parameters, and parameters that
   * are not sharded, are float32. Set it before `fullyShard`. @default float32
   */
  frozenDtype: DType = float32;
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
   * A parameter without memory.
   *
   * @param device device that computes with it
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

  /** The cuts of the global tensor into parts, of which this rank has one; empty where each rank has the full tensor. */
  get placements(): readonly Placement[] {
    return this.#placements;
  }

  /** Elements of the largest part on any rank, of this shape where nothing is cut. */
  get largestNumel(): number {
    return largestPart(this.globalShape, this.#placements);
  }

  /** The layout in the global tensor for a layout in this rank's part. */
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

  /** True once the parameter has a name. */
  get named(): boolean {
    return this.fqn !== UNNAMED;
  }

  /** The elements that this rank keeps, and their memory. */
  get storage(): ParameterStorage {
    return this.#storage;
  }

  /** Names the parameter, and its memory if that is its own, for messages. */
  rename(fqn: string): void {
    this.fqn = fqn;
    if (this.#storage.kind !== "sharded") this.#own.owner = fqn;
  }

  /** Gradient of this rank's elements: of the full shape, or flat if sharded. */
  get grad(): Tensor | undefined {
    return this.#storage.gradient();
  }

  /**
   * Calls `hook` at the end of each backward that gives the parameter a gradient, after its reduction over ranks (PyTorch's
   * `register_post_accumulate_grad_hook`). An optimizer that steps and drops the gradient there keeps none between backwards.
   *
   * @returns removes the hook
   */
  registerPostAccumulateGradHook(hook: GradientListener): () => void {
    this.#gradientHooks.add(hook);
    return () => void this.#gradientHooks.delete(hook);
  }

  /** Calls the hooks when a backward's gradient is complete. Used by storages. */
  announceGradient(): void {
    for (const hook of this.#gradientHooks) hook(this);
  }

  /** Drops the gradient. */
  zeroGrad(): void {
    this.#storage.clearGradient();
  }

  /** True if the parameter is trained. */
  override get requiresGrad(): boolean {
    return this.#requiresGrad;
  }

  /**
   * Freezes the parameter (`false`), or trains it again.
   *
   * @throws {ArgumentError} if it is kept in a narrower dtype, because it was frozen when it was sharded
   */
  override set requiresGrad(requiresGrad: boolean) {
    const { dtype: kept } = this.#storage.flatShard;
    if (requiresGrad && kept !== float32) {
      throw new ArgumentError(
        `Cannot train '${this.fqn}': it was sharded while it was frozen, and is kept in ${kept.name}; set requiresGrad before fullyShard`,
      );
    }
    this.#requiresGrad = requiresGrad;
    const { shape, dtype } = this;
    this.setEdge(requiresGrad ? { node: undefined, index: 0, sink: this.#storage.sink, shape, dtype } : undefined);
  }

  /** Allocates memory, uninitialized, if it has none. */
  materialize(): void {
    this.#storage.materialize();
  }

  /**
   * Refuses a parameter whose values were never written.
   *
   * @throws {ArgumentError} naming it
   */
  requireValues(): void {
    if (this.#storage.hasValues()) return;
    throw new ArgumentError(
      `'${this.fqn}' has no values: call model.load(), initializeParameters, loadHfWeights or loadCheckpoint first`,
    );
  }

  /** Copies values as for any tensor; a sharded parameter needs `writeParameters` instead. */
  override copyFromHost(values: HostArray): this {
    if (this.#storage.kind !== "sharded") return super.copyFromHost(values);
    throw new ArgumentError(`Cannot copy into '${this.fqn}', which is sharded: use writeParameters on all ranks`);
  }

  /**
   * Replaces the storage, and drops the gradient. Used by parallelisms.
   *
   * @param computeView memory of the unsharded values, if it is not the parameter's own; the own memory is freed when the
   * parameter is sharded, and kept when it is replicated
   * @throws {ArgumentError} if the parameter is not plain: see {@link requirePlain}
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

  /** Memory for its unsharded values, uninitialized, for {@link takePlain}. Used by parallelisms. */
  allocatePlain(): Buffer {
    return Buffer.allocate(this.device, this.numel * float32.byteLength, this.fqn, "parameters");
  }

  /** Takes over memory with its unsharded values. The parameter must be plain, and have no memory. Used by parallelisms. */
  takePlain(own: Buffer): void {
    this.requirePlain("shard");
    this.zeroGrad();
    this.#own = own;
    this.#plain = plainStorage(this, own);
    this.rebind(own, denseLayout(this.shape), float32);
    this.#storage = this.#plain;
    this.requiresGrad = this.#requiresGrad;
  }

  /** Makes it a plain parameter without a gradient; if it was sharded, without memory. Used by parallelisms. */
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
   * Refuses a parameter that is sharded or replicated: check all parameters of a module before changing any.
   *
   * @throws {ArgumentError} naming it
   */
  requirePlain(verb: "shard" | "replicate" | "cut"): void {
    const { kind } = this.#storage;
    if (kind !== "plain") throw new ArgumentError(`Cannot ${verb} '${this.fqn}': it is ${kind} already`);
  }
}
