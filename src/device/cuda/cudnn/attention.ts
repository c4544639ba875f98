/**
 * Attention by cuDNN: the calls that it supports, their plans, and their launch. All other calls go to the library's own kernels,
 * and a report names each reason once.
 *
 * @module
 */
import { InternalError } from "../../../errors.ts";
import type { Handle } from "../../../ffi/types.ts";
import type { Allocator } from "../../allocator.ts";
import { devicePtr } from "../../device.ts";
import { checksOf } from "../../kernels/arguments.ts";
import { type ArgsOf, KERNELS, type Kernels } from "../../kernels/table.ts";
import type { CudaStream } from "../streams.ts";
import { runsOnTensorCores } from "../tensor_cores.ts";
import { Descriptors } from "./descriptors.ts";
import { ALIGNMENT, makePlan, packOf, type SdpaPlan, type SdpaShape, type TensorName, uidOf } from "./sdpa.ts";
import { type Cudnn, cudnnVersion } from "./version.ts";

/** The kernels that cuDNN computes. */
type AttentionKernels = Pick<Kernels, "attention" | "attentionBackward">;
type AttentionName = keyof AttentionKernels;
/** Sizes and switches of both kernels. */
type CommonArgs = Omit<ArgsOf<"attention">, "o" | "lse">;

/** Parts of cuDNN's attention. */
export interface CudnnAttentionParts {
  readonly cudnn: Cudnn;
  /** The card's name. */
  readonly device: string;
  /** Kernels for calls that cuDNN does not support. */
  readonly own: AttentionKernels;
  readonly stream: () => CudaStream;
  readonly allocator: Allocator;
  /** Throws if no kernel may be loaded now. */
  readonly mayLoad: (kernel: string) => void;
  /** Receives a line for each kind of call that the library's own kernels compute. */
  readonly report: (text: string) => void;
}

const [SCALARS, SCALAR_BYTES] = [4, 4];

type Addresses = { readonly [N in TensorName]?: number };

/**
 * Reason why cuDNN does not support a call; undefined if it does. Beyond this rule, cuDNN may have no plan for a call on some card.
 */
function reasonAgainst(args: CommonArgs, addresses: readonly number[]): string | undefined {
  const { dtype, batch, seqQ, seqK, heads, headDim, valueDim, strideQ, strideK, strideV } = args;
  if (!runsOnTensorCores(dtype)) return `of ${dtype.name}`;
  if (args.keyMask !== undefined) return "with a mask of keys";
  if (args.starts !== undefined) return "within documents";
  if (args.window !== 0) return "within a window";
  if (args.p !== 0) return "with dropout";
  if (args.softcap !== 0) return "with bounded scores";
  if (batch * seqQ * seqK * heads === 0) return "of nothing";
  if (seqQ === 1) return "of one query"; // generation makes such calls, and each length would need a plan
  if (args.causal && seqQ > seqK) return "whose first queries see no key";
  const isAligned = (bytes: number): boolean => bytes % ALIGNMENT === 0;
  if (![headDim, valueDim].every((dims) => isAligned(dims * dtype.byteLength))) {
    return `of heads of ${dimsOf(args)} dims, no multiple of ${ALIGNMENT / dtype.byteLength},`;
  }
  const strides = [strideQ, strideK, strideV].map((stride) => stride * dtype.byteLength);
  return [...strides, ...addresses].every(isAligned)
    ? undefined
    : `of rows that begin at no multiple of ${ALIGNMENT} bytes`;
}

/** The dims of a head in words: of keys, and of values if they differ. */
function dimsOf({ headDim, valueDim }: Pick<CommonArgs, "headDim" | "valueDim">): string {
  return headDim === valueDim ? `${headDim}` : `${headDim} and ${valueDim}`;
}

export class CudnnAttention {
  /** The kernels of the table that cuDNN computes. */
  readonly kernels: AttentionKernels;
  readonly #parts: CudnnAttentionParts;
  readonly #handle: Handle<"cudnnHandle_t">;
  readonly #descriptors: Descriptors;
  /** Plans by shape; the reason if cuDNN has none. */
  readonly #plans = new Map<string, SdpaPlan | string>();
  readonly #reported = new Set<string>();
  readonly #checks = {
    attention: checksOf("attention", KERNELS.attention),
    attentionBackward: checksOf("attentionBackward", KERNELS.attentionBackward),
  };
  /**
   * Memory that cuDNN reads while a call is enqueued: the scale, the score of a hidden key, and both lengths. A typed array
   * without an explicit buffer could be moved.
   */
  readonly #memory = new ArrayBuffer(SCALARS * SCALAR_BYTES);
  readonly #floats = new Float32Array(this.#memory, 0, 2);
  readonly #lengths = new Int32Array(this.#memory, 2 * SCALAR_BYTES, 2);
  readonly #scalars: Addresses;
  #bound: CudaStream | undefined;

  /** @throws {NativeError} if cuDNN cannot work on the card */
  constructor(parts: CudnnAttentionParts) {
    const { cudnn } = parts;
    this.#parts = parts;
    const handle = cudnn.provider.out("cudnnHandle_t");
    cudnn.symbols.cudnnCreate(handle);
    this.#handle = handle.value;
    this.#descriptors = new Descriptors(cudnn);
    this.kernels = { attention: (args) => this.#forward(args), attentionBackward: (args) => this.#backward(args) };
    const first = cudnn.provider.numberOf(cudnn.provider.addressOf(this.#memory));
    const at = (place: number): number => first + place * SCALAR_BYTES;
    this.#scalars = { scale: at(0), hidden: at(1), lengthQ: at(2), lengthK: at(3) };
    this.#floats[1] = -Infinity;
  }

  /** Frees plans and the handle. */
  dispose(): void {
    this.#descriptors[Symbol.dispose]();
    this.#parts.cudnn.symbols.cudnnDestroy(this.#handle);
  }

  #forward(args: ArgsOf<"attention">): void {
    const { q, k, v, o, lse } = args;
    const found = this.#planOf("attention", args, [q, k, v, o, lse]);
    if (found === undefined) return this.#parts.own.attention(args);
    this.#run(found, args, { q, k, v, o, lse });
  }

  #backward(args: ArgsOf<"attentionBackward">): void {
    const { q, k, v, o, lse, dO, dq, dk, dv } = args;
    const found = this.#planOf("attentionBackward", args, [q, k, v, o, lse, dO, dq, dk, dv]);
    if (found === undefined) return this.#parts.own.attentionBackward(args);
    this.#run(found, args, { q, k, v, o, lse, dO, dq, dk, dv });
  }

  #planOf(name: AttentionName, args: CommonArgs, addresses: readonly number[]): SdpaPlan | undefined {
    for (const check of this.#checks[name]) check(args);
    const reason = reasonAgainst(args, addresses);
    if (reason !== undefined) return this.#tell(`Attention ${reason}`, "this library does not give it to cuDNN");
    const { dtype, batch, seqQ, seqK, heads, kvHeads, headDim, valueDim, strideQ, strideK, strideV, causal } = args;
    const sizes = { batch, seqQ, seqK, heads, kvHeads, headDim, valueDim, strideQ, strideK, strideV };
    const direction: SdpaShape["direction"] = name === "attention" ? "forward" : "backward";
    const key = `${direction} ${dtype.name} ${causal} ${Object.values(sizes).join()}`;
    let found = this.#plans.get(key);
    if (found === undefined) {
      this.#parts.mayLoad(`${name} by cuDNN`);
      found = makePlan(this.#descriptors, { direction, dtype, causal, ...sizes }, { handle: this.#handle });
      this.#plans.set(key, found);
    }
    if (typeof found !== "string") return found;
    const what = `The ${direction} of attention of ${dtype.name} with heads of ${dimsOf(args)} dims`;
    return this.#tell(
      what,
      `cuDNN ${cudnnVersion(this.#parts.cudnn)} has no plan for it on ${this.#parts.device} (${found})`,
    );
  }

  #tell(what: string, why: string): undefined {
    if (this.#reported.has(what)) return;
    this.#reported.add(what);
    this.#parts.report(`${what} is computed by our own kernels: ${why}`);
  }

  #run(
    { plan, workspaceBytes, tensors }: SdpaPlan,
    { scale, seqQ, seqK }: CommonArgs,
    given: Addresses,
  ): void {
    const { cudnn: { symbols }, allocator, stream } = this.#parts;
    const current = stream();
    if (current !== this.#bound) symbols.cudnnSetStream(this.#handle, current.handle);
    this.#bound = current;
    this.#floats[0] = scale;
    this.#lengths.set([seqQ, seqK]);
    const addresses = tensors.map((name) => {
      const address = given[name] ?? this.#scalars[name];
      if (address === undefined) throw new InternalError(`attention by cuDNN needs '${name}', which it is not given`);
      return address;
    });
    const workspace = workspaceBytes === 0 ? 0 : allocator.allocate(workspaceBytes, "scratch of attention by cuDNN");
    try {
      const pack = packOf(tensors.map(uidOf), addresses, workspace);
      this.#descriptors.lend("CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR", pack, (given) => {
        symbols.cudnnBackendExecute(this.#handle, plan, given);
      });
    } finally {
      if (workspaceBytes > 0) allocator.free(devicePtr(workspace));
    }
  }
}
