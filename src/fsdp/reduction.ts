/**
 * The reduction of a segment's gradients at the end of a backward, by one of three strategies:
 * - direct: the reduce-scatter writes the sharded gradient;
 * - partial: it writes the partial gradient, as an all-reduce over replicas (HSDP) or a hook of the user follows;
 * - offloaded: it writes memory of the compute device, which is copied to the sharded gradient in host memory.
 *
 * Note [Reductions]
 * - Order: all of it is enqueued on the stream `reduce`, after what the compute stream has been given until then. The compute stream
 *   goes on. It waits for the reduction where the sharded gradient is read (`SegmentGradients.waitForReduction`).
 * - Division: gradients are summed as they are, and each sum is multiplied once, in float32, by the inverse of the divide factor
 *   (`FsdpUnit.gradientDivideFactor`; the number of ranks at first). Where there are replicas, their all-reduce multiplies, and
 *   elsewhere the reduce-scatter.
 * - Unsharded gradient: when its reduction is enqueued, the root takes it over (`ReductionInputs`). The root keeps the newest
 *   `maxReduceScatterInputs - 1` of them; by default it keeps none. It frees the others on the stream `reduce`, which is after their
 *   reduction. At the end of the backward it frees all.
 * - Between hosts on the CPU a reduction goes on until it is waited for. The root keeps its gradient until the next reduction begins,
 *   which first waits for it.
 * - Unsharded parameters: no reduction reads them. `FsdpUnit.postBackward` frees them after it has enqueued the reduction, on the
 *   compute stream, so after the backward that reads them.
 * - Failure: a strategy frees what it has allocated for itself. `FlatSegment.abandonPass` frees the rest when the pass is given up.
 *
 * @module
 */
import { enqueuedWork, type Work } from "../comm/data_plane.ts";
import { Buffer } from "../device/buffer.ts";
import type { DevicePtr } from "../device/device.ts";
import type { DeviceScalar } from "../device/scalars.ts";
import { float32 } from "../dtype.ts";
import { denseLayout } from "../shape.ts";
import { endingWith } from "../comm/work_end.ts";
import { Tensor } from "../tensor/tensor.ts";
import { copyChunks } from "./gathered.ts";
import type { FlatSegment } from "./segment.ts";

/** The destination of a reduce-scatter. */
interface SumTarget {
  /** This rank's shard of the sums, on the compute device. */
  readonly dst: Buffer;
  /** True: `dst` holds earlier sums, and these are added to them. */
  readonly accumulate: boolean;
  /** The factor on the sums; undefined is 1. */
  readonly scale: DeviceScalar | undefined;
}

/** A reduction, which a strategy carries out. */
interface SegmentReduction {
  readonly segment: FlatSegment;
  readonly scale: DeviceScalar;
  /** Sums the unsharded gradients of the ranks that share the unit. */
  readonly reduceScatter: (target: SumTarget) => Work;
}

/** The reduce-scatter adds to the sharded gradient itself. */
function reduceDirectly({ segment: { gradients }, scale, reduceScatter }: SegmentReduction): Work {
  const { buffer: dst, isNew } = gradients.shardedSum();
  return reduceScatter({ dst, accumulate: !isNew, scale });
}

/** The reduce-scatter adds to the partial gradient; {@link allReducePartial} follows, in this pass or a later one. */
function reducePartially({ segment: { gradients, unit: { policy } }, scale, reduceScatter }: SegmentReduction): Work {
  const { buffer: dst, isNew } = gradients.partialSum();
  return reduceScatter({ dst, accumulate: !isNew, scale: policy.replicas === undefined ? scale : undefined });
}

/** The reduce-scatter writes memory of the compute device; a copy of that is then added to the sharded gradient in host memory. */
function reduceToHost({ segment: { computeDevice, gradients }, scale, reduceScatter }: SegmentReduction): Work {
  using dst = gradients.allocateShard(computeDevice);
  const work = reduceScatter({ dst, accumulate: false, scale });
  work.wait();
  gradients.addToSharded(dst);
  return enqueuedWork(computeDevice);
}

/** The strategy of a segment: partial with replicas or a hook, else direct or, with an offload policy, offloaded. */
function strategyOf(
  { device, computeDevice, unit: { policy, custom } }: FlatSegment,
): (reduction: SegmentReduction) => Work {
  if (policy.replicas !== undefined || custom.allReduceHook !== undefined) return reducePartially;
  return device === computeDevice ? reduceDirectly : reduceToHost;
}

/** Sums the unsharded gradient, which must be complete, over the ranks that share the unit. */
export function reduceSegment(segment: FlatSegment, scale: DeviceScalar): void {
  const { gradients, storages } = segment;
  const { ptr: src } = gradients.unsharded;
  onReduceStream(segment, scale, () => {
    segment.unit.rootInputs.makeRoom();
    const work = strategyOf(segment)({
      segment,
      scale,
      reduceScatter: (target) => reduceScatter(segment, src, target),
    });
    for (const { sink } of storages) sink.clear();
    gradients.handOver(work);
    return work;
  });
}

/** Sums the partial gradient, where there is one, over replicas, hands it to a hook, and adds it to the sharded gradient. */
export function allReducePartial(segment: FlatSegment, scale: DeviceScalar): void {
  const { gradients, length, name, unit: { policy: { replicas }, custom: { allReduceHook } } } = segment;
  if (!gradients.isPartial) return;
  onReduceStream(segment, scale, () => {
    gradients.waitForReduction();
    using partial = gradients.takePartial();
    replicas?.allReduce(partial.ptr, length, float32, { scale, unit: name, phase: "backward" }).wait();
    if (allReduceHook !== undefined) {
      partial.retain();
      using reduced = new Tensor(partial, denseLayout([length]), float32);
      allReduceHook(reduced);
    }
    gradients.addToSharded(partial);
    return enqueuedWork(segment.computeDevice);
  });
}

/** Enqueues `reduce`, which reads `scale`, on the stream `reduce` after what the present stream has been given. */
function onReduceStream({ computeDevice, gradients }: FlatSegment, scale: DeviceScalar, reduce: () => Work): void {
  scale.flush(); // uploads the factor on the compute stream, before the reduce stream waits for it
  const { streams } = computeDevice;
  streams.get("reduce").wait(streams.current.record());
  streams.on("reduce", () => gradients.enqueueReduction(reduce));
}

/** The reduce-scatter itself, by the group or by a function of the user. */
function reduceScatter(segment: FlatSegment, unsharded: DevicePtr, { dst, accumulate, scale }: SumTarget): Work {
  const { length, name, plan: { numShards }, unit: { policy: { group, reduceDtype: dtype }, custom } } = segment;
  const slices = Array.from({ length: numShards }, (_, rank) => ({ offset: rank * length, length }));
  const chunked = chunksInOrder(segment, unsharded);
  const scaled = scale === undefined ? {} : { scale };
  const src = chunked?.ptr ?? unsharded;
  const args = { src, dtype, slices, dst: dst.ptr, dstDtype: float32, accumulate, ...scaled };
  return endingWith(chunked, () => {
    if (custom.reduceScatter === undefined) return group.reduceScatter(args, name, "backward");
    const work = custom.reduceScatter({ ...args, group, unit: name, phase: "backward" });
    // It may wrap the group's work and not say that this goes on.
    if (work.endsInWait !== true) work.wait();
    return work;
  });
}

/** A copy of the unsharded gradient in which each rank's chunk is contiguous; undefined where the chunks are contiguous already. */
function chunksInOrder(segment: FlatSegment, unsharded: DevicePtr): Buffer | undefined {
  const { computeDevice, length, name, plan: { chunks, numShards }, unit: { policy: { reduceDtype } } } = segment;
  if (chunks === undefined || chunks.dim === 0) return undefined;
  const shards = Buffer.allocate(
    computeDevice,
    numShards * length * reduceDtype.byteLength,
    `${name} gradient chunks`,
    "gradients",
  );
  copyChunks(computeDevice, reduceDtype, chunks, { unsharded, shards: shards.ptr, numShards, to: "shards" });
  return shards;
}
