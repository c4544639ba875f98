/**
 * The parameters of one segment: this rank's shard of the master weights, the window from which the other ranks gather it, and the
 * unsharded buffer, whose views are the parameters. A gather writes all shards into that buffer, one behind the other, so that nothing is
 * copied in or out. Two things are copied: a parameter that is cut along another dim than the first, and the parameters of an extension,
 * which gathers a form of its own.
 *
 * Note [Memory of a segment's parameters], in the order in which it comes; `states.ts` says when each is freed:
 * - shard: float32 master weights, or frozen values in their own dtype.
 * - window: the memory that other ranks read. It is the shard itself if the shard is gathered in its own dtype: float32 weights with a
 *   float32 compute dtype, and frozen values narrower than float32. Otherwise it holds the weights in the compute dtype, and each write
 *   of the shard casts them again. Frozen values of another dtype than the compute dtype are cast after the gather.
 * - unsharded buffer: the shards of all ranks, in the compute dtype. Quantized values stay quantized, and products dequantize them.
 *   The gather stream allocates and writes the buffer. `reshard` frees it on the compute stream, the current one: a card frees memory in
 *   the order of a stream (`device/cuda/allocator.ts`), so after the computation that reads it. `FsdpUnit` calls `reshard` at the end of
 *   the unit's forward and of its backward, at the end of the pass, when a forward or a backward has failed, before the shard is
 *   written, and when the user asks for it.
 * - post-forward shard: after a forward that reshards over fewer ranks, this rank's shard of the unsharded buffer. Those ranks gather
 *   these shards from each other.
 *
 * Note [Offloaded shards]: with an offload policy, shard and window lie on another device, `shardDevice`. A call has done its work
 * there when it returns. A gather first copies the shard to the compute device, and frees the copy when it has been read.
 *
 * The unsharded buffer is allocated and filled on the gather stream, after the last write of the shard or of the post-forward shard, and
 * after the computation of earlier units: see Note [Gathers and computation]. The compute stream waits for the gather, reads the
 * buffer, and frees it.
 *
 * @module
 */
import { at } from "../at.ts";
import { noGrad } from "../autograd/mode.ts";
import type { Phase } from "../comm/call.ts";
import { enqueuedWork, type Work } from "../comm/data_plane.ts";
import type { GatherWindow } from "../comm/gather_window.ts";
import { OffloadedWindow } from "../comm/offloaded_window.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, devicePtr } from "../device/device.ts";
import { type DType, float32 } from "../dtype.ts";
import { copyAcross } from "../device/offload.ts";
import type { DeviceEvent } from "../device/stream.ts";
import { InternalError, UseAfterDisposeError } from "../errors.ts";
import { asQuantized } from "../quantized.ts";
import { denseLayout, numelOf } from "../shape.ts";
import { scope } from "../tensor/scope.ts";
import { Tensor } from "../tensor/tensor.ts";
import { type GatherTurns, gatherTurnsOf } from "./gather_turns.ts";
import { chunkOf, type Chunks, type SegmentPlan } from "./layout.ts";
import type { AllGatherCall, CustomCollectives, GatherExtension, ResolvedPolicy } from "./policy.ts";
import { disposedText, MemoryState, type ParameterMove, SEGMENT_MOVES, type ShardedState } from "./states.ts";

/** This rank's shard of the unsharded buffer after a forward that reshards over fewer ranks. */
interface PostForwardShard {
  readonly buffer: Buffer;
  /** The ranks that keep the shards, this rank included. The next gather is an all-gather among them. */
  readonly group: ProcessGroup;
}

/** Copies the chunks of all ranks from an unsharded parameter to the ranks' shards, which follow each other in memory, or back. */
export function copyChunks(
  { kernels }: Device,
  dtype: DType,
  chunks: Chunks,
  { unsharded, shards, numShards, to }: {
    readonly unsharded: DevicePtr;
    readonly shards: DevicePtr;
    readonly numShards: number;
    readonly to: "unsharded" | "shards";
  },
): void {
  const { strides } = denseLayout(chunks.shape);
  for (let rank = 0, begin = 0; rank < numShards; rank++) {
    const { offsets, sizes } = chunkOf(chunks, rank);
    const inUnsharded = at(offsets, chunks.dim, "dim") * at(strides, chunks.dim, "dim");
    const places = {
      unsharded: { ptr: devicePtr(unsharded + inUnsharded * dtype.byteLength), strides },
      shards: { ptr: devicePtr(shards + begin * dtype.byteLength), strides: denseLayout(sizes).strides },
    };
    const [dst, src] = [places[to], places[to === "unsharded" ? "shards" : "unsharded"]];
    const args = { dst: dst.ptr, dstStrides: dst.strides, src: src.ptr, srcStrides: src.strides };
    kernels.copyStrided({ dtype, shape: sizes, ...args });
    begin += numelOf(sizes);
  }
}

/** The memory of a shard. */
interface ShardMemory {
  /** The device that it lies on. */
  readonly device: Device;
  readonly window: GatherWindow;
  /** The master weights. */
  readonly master: Buffer;
}

/** The memory of a segment's parameters. */
export class GatheredParameters {
  /** The shards of all ranks, while they are gathered. Each parameter holds a reference. */
  readonly unsharded: Buffer;
  readonly #device: Device;
  /** The unit, to which {@link GatherTurns} gives a turn. */
  readonly #unit: object;
  readonly #turns: GatherTurns;
  readonly #policy: ResolvedPolicy;
  readonly #extension: GatherExtension | undefined;
  readonly #plan: SegmentPlan;
  /** dtype of the unsharded buffer. */
  readonly #computeDtype: DType;
  /** dtype of the master weights. */
  readonly #masterDtype: DType;
  /** dtype of the all-gather. */
  readonly #gatherDtype: DType;
  readonly #nameOf: () => string;
  readonly #state: MemoryState<ShardedState, ParameterMove>;
  /** The window that other ranks read; undefined where the shard is offloaded. */
  readonly #shared: GatherWindow | undefined;
  /** The shard; undefined until {@link allocateShard}, and after {@link dispose}. */
  #memory: ShardMemory | undefined;
  #postForwardShard: PostForwardShard | undefined;
  /** An event after the last write of the shard or of the post-forward shard. The next gather waits for it. */
  #written: DeviceEvent;
  /** The end of the gather under way. */
  #gather: Work | undefined;

  /**
   * Opens the window, unless the shard is offloaded. Collective: where it fails on a rank, it fails on all, and none keeps memory.
   *
   * @param nameOf gives the present name of the segment
   * @param masterDtype dtype of the master weights: float32, or a narrower one for frozen parameters of a flat segment
   * @param extension gathers the segment's only parameter in a form of its own; the plan must cut it into chunks
   */
  constructor(
    device: Device,
    plan: SegmentPlan,
    unit: { readonly policy: ResolvedPolicy },
    nameOf: () => string,
    masterDtype: DType,
    extension: GatherExtension | undefined,
  ) {
    const { policy } = unit;
    this.#device = device;
    this.#unit = unit;
    this.#turns = gatherTurnsOf(device);
    this.#policy = policy;
    this.#extension = extension;
    this.#plan = plan;
    this.#computeDtype = asQuantized(masterDtype) ?? policy.paramDtype;
    this.#masterDtype = masterDtype;
    this.#gatherDtype = masterDtype === float32 ? this.#computeDtype : masterDtype;
    this.#nameOf = nameOf;
    this.#state = new MemoryState(SEGMENT_MOVES.parameters, nameOf);
    const name = nameOf();
    const bytes = plan.shardLength * this.#gatherDtype.byteLength;
    this.#shared = policy.offloadPolicy === undefined
      ? policy.group.openWindow(new Array<number>(plan.numShards).fill(bytes), name)
      : undefined;
    const source = policy.group.gatherMemory();
    const unsharded = plan.numShards * plan.shardLength * this.#computeDtype.byteLength;
    this.unsharded = Buffer.empty(device, unsharded, `${name} gathered parameters`, "gathered", source);
    this.#written = device.streams.current.record();
  }

  /** Allocates this rank's shard. It may fail on this rank alone, and keeps nothing then. */
  allocateShard(): void {
    const { offloadPolicy, group } = this.#policy;
    if (offloadPolicy?.pinMemory === false) this.#device.offload.leaveUnpinned();
    const shardDevice = offloadPolicy === undefined ? this.#device : this.#device.offload.device;
    const [name, { shardLength }] = [this.#nameOf(), this.#plan];
    const bytes = shardLength * this.#gatherDtype.byteLength;
    using taken = new DisposableStack();
    const window = this.#shared ?? new OffloadedWindow(group, this.#device, bytes, name);
    if (window !== this.#shared) taken.defer(() => window.dispose());
    const master = this.#gatherDtype === this.#masterDtype
      ? Buffer.borrow(shardDevice, window.pointer, bytes, `${name} parameters`)
      : Buffer.allocate(shardDevice, shardLength * float32.byteLength, `${name} master weights`, "parameters");
    taken.move();
    this.#memory = { device: shardDevice, window, master };
    this.#state.take("open");
  }

  /** The dtype of the unsharded buffer. */
  get computeDtype(): DType {
    return this.#computeDtype;
  }

  /** The device of the shard. */
  get shardDevice(): Device {
    return this.#shard.device;
  }

  /** Address of the master weights. */
  get master(): DevicePtr {
    return this.#shard.master.ptr;
  }

  get #shard(): ShardMemory {
    if (this.#memory === undefined) throw new UseAfterDisposeError(disposedText(this.#nameOf()));
    return this.#memory;
  }

  /** Waits until no other rank reads the shard. The caller frees the unsharded buffer first, which would keep the old values. */
  beginWrite(): void {
    this.#shard.window.beginWrite(this.#nameOf());
  }

  /** Casts the shard to the compute dtype, if the window holds that dtype, and publishes it to the other ranks. */
  endWrite(): void {
    if (this.#gatherDtype !== this.#masterDtype) {
      const [dst, src] = [this.#shard.window.pointer, this.#shard.master.ptr];
      this.shardDevice.kernels.cast({
        dstDtype: this.#computeDtype,
        srcDtype: float32,
        n: this.#plan.shardLength,
        dst,
        src,
      });
    }
    this.#shard.window.endWrite();
    this.unsharded.version++;
    this.#written = this.#device.streams.current.record();
  }

  /** Starts the gather of all shards, by `custom` if it is given. {@link wait} waits for it. */
  unshard(phase: Phase, custom: CustomCollectives["allGather"]): void {
    const { streams } = this.#device;
    this.#state.take("gather");
    this.#turns.beginGather(this.#unit);
    streams.get("gather").wait(this.#written);
    this.#gather = streams.on("gather", () => {
      try {
        this.unsharded.allocateMemory();
        return this.#postForwardShard === undefined
          ? this.#gatherAll(phase, custom)
          : this.#gatherPostForward(this.#postForwardShard, phase);
      } catch (error) {
        this.unsharded.freeMemory();
        this.#freePostForwardShard();
        this.#turns.endUse(this.#unit);
        this.#state.take("fail to gather");
        throw error;
      }
    });
  }

  /** Makes all work that is enqueued from now on wait for the present gather. */
  wait(): void {
    const gather = this.#gather;
    if (gather === undefined) return;
    this.#gather = undefined;
    try {
      gather.wait();
    } finally {
      this.#state.take("use"); // a gather that has failed leaves memory to free, too
    }
  }

  /** Frees the unsharded buffer or the post-forward shard. Does nothing if there is neither. */
  reshard(): void {
    this.wait();
    if (["unopened", "sharded", "disposed"].includes(this.#state.state)) return;
    this.#state.take("reshard");
    this.unsharded.freeMemory();
    this.#freePostForwardShard();
    this.#turns.endUse(this.#unit);
  }

  /** Frees the unsharded buffer; each rank of `group` keeps its shard of it. */
  reshardPostForward(group: ProcessGroup): void {
    this.wait();
    this.#state.require("reshard post forward");
    const bytes = this.unsharded.byteLength / group.size;
    const buffer = Buffer.allocate(this.#device, bytes, `${this.#nameOf()} post-forward shard`, "gathered");
    this.#device.copy(buffer.ptr, devicePtr(this.unsharded.ptr + group.rank * bytes), bytes);
    this.unsharded.freeMemory();
    this.#turns.endUse(this.#unit);
    this.#postForwardShard = { buffer, group };
    this.#written = this.#device.streams.current.record();
    this.#state.take("reshard post forward");
  }

  /** Frees everything. Every rank must call it; a second call does nothing. */
  dispose(): void {
    if (this.#state.state === "disposed") return;
    this.reshard();
    this.#state.take("dispose");
    this.unsharded.release();
    this.#memory?.master.release();
    (this.#memory?.window ?? this.#shared)?.dispose();
    this.#memory = undefined;
  }

  #gatherAll(phase: Phase, custom: CustomCollectives["allGather"]): Work {
    if (this.#extension !== undefined) return this.#gatherExtended(this.#extension, phase);
    const { chunks, numShards, shardLength } = this.#plan;
    const byteLength = shardLength * this.#gatherDtype.byteLength;
    const unit = this.#nameOf();
    const isCast = this.#gatherDtype !== this.#computeDtype;
    using shards = !isCast && (chunks === undefined || chunks.dim === 0)
      ? undefined
      : Buffer.allocate(this.#device, numShards * byteLength, `${unit} gathered chunks`, "gathered");
    const dst = (shards ?? this.unsharded).ptr;
    const starts = Array.from({ length: numShards }, (_, rank) => rank * byteLength);
    const work = custom === undefined
      ? this.#shard.window.gather(dst, starts, unit, phase)
      : this.#gatherBy(custom, { group: this.#policy.group, dst, byteLength, unit, phase });
    if (shards === undefined) return work;
    work.wait();
    if (isCast) {
      const cast = { dstDtype: this.#computeDtype, srcDtype: this.#gatherDtype, n: numShards * shardLength };
      this.#device.kernels.cast({ ...cast, dst: this.unsharded.ptr, src: shards.ptr });
      return enqueuedWork(this.#device);
    }
    if (chunks === undefined) return work;
    copyChunks(this.#device, this.#computeDtype, chunks, {
      unsharded: this.unsharded.ptr,
      shards: shards.ptr,
      numShards,
      to: "unsharded",
    });
    return enqueuedWork(this.#device);
  }

  #gatherBy(custom: NonNullable<CustomCollectives["allGather"]>, call: Omit<AllGatherCall, "src">): Work {
    using own = this.#onDevice(this.#shard.window.pointer, call.byteLength);
    return custom({ ...call, src: own.ptr });
  }

  /** A reference to the shard's memory for the compute device: the memory itself, or a copy of it if it is offloaded. */
  #onDevice(ptr: DevicePtr, byteLength: number): Buffer {
    const owner = `${this.#nameOf()} shard on the device`;
    if (this.shardDevice === this.#device) return Buffer.borrow(this.#device, ptr, byteLength, owner);
    const copy = Buffer.allocate(this.#device, byteLength, owner, "gathered");
    copyAcross({ device: this.#device, ptr: copy.ptr }, { device: this.shardDevice, ptr }, byteLength);
    return copy;
  }

  /** Gathers the tensors that an extension makes of the master weights, and lets it write the unsharded parameter from them. */
  #gatherExtended(extension: GatherExtension, phase: Phase): Work {
    const { chunks, numShards } = this.#plan;
    const { group, paramDtype } = this.#policy;
    if (chunks === undefined) throw new InternalError(`'${this.#nameOf()}' has an extension and no chunks`);
    const { shape } = chunks;
    const context = { group, shape, chunkShape: chunkOf(chunks, 0).sizes, paramDtype };
    using _frame = scope();
    return noGrad(() => {
      const own = this.#onDevice(this.#shard.master.ptr, this.#shard.master.byteLength);
      using shard = new Tensor(own, denseLayout(chunkOf(chunks, group.rank).sizes), float32);
      const { inputs, metadata } = extension.preAllGather(shard, context);
      const outputs = inputs.map((input, i) => {
        const [own, all] = [
          input.contiguous(),
          input.spawn([numShards, ...input.shape], input.dtype, "gathered input"),
        ];
        const bytes = own.numel * own.dtype.byteLength;
        group.allGather(all.ptr, own.ptr, bytes, `${this.#nameOf()} input ${i}`, phase).wait();
        return all;
      });
      this.unsharded.retain();
      using out = new Tensor(this.unsharded, denseLayout(shape), paramDtype);
      extension.postAllGather(outputs, metadata, out);
      return enqueuedWork(this.#device);
    });
  }

  #gatherPostForward({ buffer: { ptr, byteLength }, group }: PostForwardShard, phase: Phase): Work {
    const work = group.allGather(this.unsharded.ptr, ptr, byteLength, this.#nameOf(), phase);
    this.#freePostForwardShard();
    return work;
  }

  #freePostForwardShard(): void {
    this.#postForwardShard?.buffer.release();
    this.#postForwardShard = undefined;
  }
}
