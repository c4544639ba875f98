/**
 * Parameters: tensors with a name, an initialization, a gradient and a storage. A plain parameter keeps all of its elements; a
 * parallelism gives it another storage by {@link Parameter.adopt}.
 *
 * @module
 */
import { requireKnownKeys } from "../config/known_keys.ts";
import { Buffer } from "../device/buffer.ts";
import { type Device, requireDevice } from "../device/device.ts";
import { type DType, float32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { bytesOf, type QuantizedDType } from "../quantized.ts";
import { denseLayout, numelOf, requireShape, type Shape } from "../shape.ts";
import { globalLayout, largestPart, partShape, type Placement } from "./cut.ts";
import type { HostArray } from "./host.ts";
import { absentStorage, isKeptHere, type Owners } from "./owners.ts";
import type { ComputeView, ParameterStorage } from "./parameter_storage.ts";
import { plainStorage } from "./plain_storage.ts";
import type { ShardLayout } from "./shard_layout.ts";
import { Tensor } from "./tensor.ts";
import { valueText } from "../words.ts";

/** Initialization of a parameter; each element depends only on the seed, the parameter's FQN and the element's index. */
export type Init =
  | { readonly kind: "normal"; readonly mean: number; readonly std: number }
  | { readonly kind: "uniform"; readonly low: number; readonly high: number }
  /** The logarithm of a uniform value. */
  | { readonly kind: "logUniform"; readonly low: number; readonly high: number }
  | { readonly kind: "constant"; readonly value: number };

/** The numbers of each kind of {@link Init}. */
const INIT_NUMBERS: ReadonlyMap<Init["kind"], readonly string[]> = new Map([
  ["normal", ["mean", "std"]],
  ["uniform", ["low", "high"]],
  ["logUniform", ["low", "high"]],
  ["constant", ["value"]],
]);

/** Refuses what is no initialization. @throws {ArgumentError} with the value and the kinds that there are */
function requireInit(init: Init): void {
  const numbers = INIT_NUMBERS.get(init.kind);
  if (numbers?.every((name) => typeof Reflect.get(Object(init), name) === "number") === true) return;
  const kinds = Array.from(INIT_NUMBERS, ([kind, names]) => `{ kind: "${kind}", ${names.join(", ")} }`);
  const got = numbers === undefined ? valueText(init) : `'${init.kind}'`;
  throw new ArgumentError(`Cannot initialize a Parameter by ${got}: expected ${kinds.join(" or ")}, with numbers`);
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
   * dtype of its values if it is frozen when it is sharded, such as the dtype of its file. Trained parameters, and parameters that are
   * not sharded, are float32. Set it before `fullyShard`. @default float32
   */
  frozenDtype: DType = float32;
  /** Shape of the global tensor, as files and optimizer states have it; {@link shape} is the shape of this rank's part. */
  readonly globalShape: Shape;
  #placements: readonly Placement[] = [];
  #owners: Owners | undefined;
  /** The parameter's own memory, which holds its master values until it is sharded. */
  #own: Buffer;
  #plain: ParameterStorage;
  #storage: ParameterStorage;
  #requiresGrad: boolean;
  /** dtype of the parameter's own memory. */
  #ownDtype: DType = float32;
  #quantized: QuantizedDType | undefined;
  readonly #gradientHooks = new Set<GradientListener>();

  /**
   * A parameter without memory.
   *
   * @param device device that computes with it
   * @param shape its shape; float32
   */
  constructor(device: Device, shape: Shape, options: ParameterOptions = {}) {
    requireDevice("make a Parameter", device);
    requireShape("Parameter", shape);
    requireKnownKeys("make a Parameter", options, { init: true, requiresGrad: true });
    const buffer = Buffer.empty(device, numelOf(shape) * float32.byteLength, "parameter", "parameters");
    super(buffer, denseLayout(shape), float32);
    this.globalShape = shape;
    this.init = options.init ?? { kind: "constant", value: 0 };
    requireInit(this.init);
    this.#own = buffer;
    this.#plain = plainStorage(this, buffer, float32);
    this.#storage = this.#plain;
    this.#requiresGrad = options.requiresGrad ?? true;
    this.requiresGrad = this.#requiresGrad;
  }

  /** The cuts of the global tensor into parts, one part for each rank; empty where every rank has the full tensor. */
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
    if (this.#own.hasMemory) throw new ArgumentError(`Cannot cut '${this.fqn}': it has values`);
    if (this.#quantized !== undefined) {
      throw new ArgumentError(
        `Cannot cut '${this.fqn}' over an axis: it is quantized to ${this.#quantized.name}, and a cut would divide its blocks; load it ` +
          "without quantization",
      );
    }
    this.zeroGrad();
    this.#placements = placements;
    const shape = placements.reduce<Shape>((part, one) => partShape(part, one), this.globalShape);
    this.#takeMemory(
      Buffer.empty(this.device, numelOf(shape) * float32.byteLength, this.#own.owner, "parameters"),
      shape,
    );
  }

  /** The dtype that its values are quantized to, wherever they lie; undefined if they are not. */
  get quantized(): QuantizedDType | undefined {
    return this.#quantized;
  }

  /**
   * Keeps its values in a quantized dtype from now on, plain, sharded or replicated, and freezes it. Products dequantize them; other
   * operations refuse it.
   *
   * @throws {ArgumentError} if it is not plain, has values, or is one rank's part of a tensor
   */
  quantize(dtype: QuantizedDType): void {
    this.requireQuantizable();
    this.zeroGrad();
    this.#requiresGrad = false;
    [this.#quantized, this.#ownDtype] = [dtype, dtype];
    this.#takeMemory(Buffer.empty(this.device, bytesOf(dtype, this.numel), this.#own.owner, "parameters"), this.shape);
  }

  /**
   * Refuses a parameter that cannot be quantized: check all parameters of a module before changing any.
   *
   * @throws {ArgumentError} as {@link quantize}
   */
  requireQuantizable(): void {
    this.requirePlain("quantize");
    if (this.#placements.length === 0 && !this.#own.hasMemory) return;
    const why = this.#own.hasMemory ? "has values; quantize it before it is loaded" : "is cut over an axis";
    throw new ArgumentError(`Cannot quantize '${this.fqn}': it ${why}`);
  }

  /**
   * Keeps float32 values from now on, those that the quantized ones stand for.
   *
   * @param values memory with its values, as {@link allocateWide} gives it; the parameter takes it over
   * @throws {ArgumentError} if it is not plain
   */
  dequantize(values: Buffer): void {
    this.requirePlain("dequantize");
    [this.#quantized, this.#ownDtype] = [undefined, float32];
    this.#takeMemory(values, this.shape);
  }

  /** Memory for its values in float32, uninitialized. */
  allocateWide(): Buffer {
    return Buffer.allocate(this.device, this.numel * float32.byteLength, this.fqn, "parameters");
  }

  /** Makes memory the parameter's own, in place of its present one. */
  #takeMemory(own: Buffer, shape: Shape): void {
    this.#own = own;
    this.rebind(own, denseLayout(shape), this.#ownDtype);
    this.#plain = plainStorage(this, own, this.#ownDtype);
    this.#storage = this.#plain;
    this.requiresGrad = this.#requiresGrad;
  }

  /** The ranks of an axis that keep it, where others keep nothing of it. @default all ranks keep their part of it */
  get owners(): Owners | undefined {
    return this.#owners;
  }

  /**
   * Leaves it to some ranks of an axis: the others keep nothing of it from then on. Used by pipelines, before it is sharded.
   *
   * @throws {ArgumentError} if it is not plain, has values, or is left to some ranks already
   */
  leaveTo(owners: Owners): void {
    this.requirePlain("divide");
    if (this.#owners !== undefined || this.#own.hasMemory) {
      const why = this.#own.hasMemory ? "has values; divide the model before it is loaded" : "is divided already";
      throw new ArgumentError(`Cannot divide '${this.fqn}' among stages: it ${why}`);
    }
    this.#owners = owners;
    if (isKeptHere(owners)) return;
    this.zeroGrad();
    this.#storage = absentStorage(this.globalShape, owners.emptyShard);
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

  /** True if a hook waits for its gradient. */
  get isHooked(): boolean {
    return this.#gradientHooks.size > 0;
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
    if (typeof requiresGrad !== "boolean") {
      throw new ArgumentError(
        `Cannot set requiresGrad of '${this.fqn}' to ${valueText(requiresGrad)}: expected true or false`,
      );
    }
    const { dtype: kept } = this.#storage.flatShard;
    if (requiresGrad && kept !== float32) {
      const why = this.#quantized === undefined
        ? `was sharded while it was frozen, and is kept in ${kept.name}; set requiresGrad before fullyShard`
        : `is quantized to ${kept.name}; leave its module out of what is quantized`;
      throw new ArgumentError(`Cannot train '${this.fqn}': it ${why}`);
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
    return Buffer.allocate(this.device, bytesOf(this.#ownDtype, this.numel), this.fqn, "parameters");
  }

  /** Takes over memory with its unsharded values. The parameter must be plain, and have no memory. Used by parallelisms. */
  takePlain(own: Buffer): void {
    this.requirePlain("shard");
    this.zeroGrad();
    this.#takeMemory(own, this.shape);
  }

  /** Makes it a plain parameter without a gradient; if it was sharded, without memory. Used by parallelisms. */
  release(): void {
    this.zeroGrad();
    if (this.#storage.kind === "sharded") {
      this.#own = Buffer.empty(this.device, bytesOf(this.#ownDtype, this.numel), this.fqn, "parameters");
      this.#plain = plainStorage(this, this.#own, this.#ownDtype);
    }
    if (this.buffer !== this.#own) this.rebind(this.#own, denseLayout(this.shape), this.#ownDtype);
    this.#storage = this.#plain;
    this.requiresGrad = this.#requiresGrad;
  }

  /**
   * Refuses a parameter that is sharded or replicated: check all parameters of a module before changing any.
   *
   * @throws {ArgumentError} naming it
   */
  requirePlain(verb: "shard" | "replicate" | "cut" | "quantize" | "dequantize" | "divide"): void {
    const { kind } = this.#storage;
    if (kind !== "plain") throw new ArgumentError(`Cannot ${verb} '${this.fqn}': it is ${kind} already`);
  }
}
