/**
 * One sharded parameter: the elements that this rank keeps, and its gradient, which is unsharded before the reduction and sharded
 * after it.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import { normReducerOf } from "../parallel/norm.ts";
import { GradientSlot } from "../tensor/gradient_slot.ts";
import { type NormReducer, reduceOver } from "../tensor/norm_reducer.ts";
import type { Parameter } from "../tensor/parameter.ts";
import type { GradientReducer, ParameterStorage, Sharers } from "../tensor/parameter_storage.ts";
import type { ShardLayout } from "../tensor/shard_layout.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { shardLayoutOf } from "./layout.ts";
import type { FlatSegment } from "./segment.ts";
import type { FsdpUnit } from "./unit.ts";

/** The storage of a sharded parameter. */
export class ShardedStorage implements ParameterStorage {
  readonly kind = "sharded";
  readonly parameter: Parameter;
  readonly shard: ShardLayout;
  /** The same elements as {@link shard}, by their indices in the local tensor that this unit gathers. */
  readonly localShard: ShardLayout;
  readonly sink: GradientSlot;
  readonly normReducer: NormReducer;
  readonly sharers: Sharers | undefined;
  readonly flatShard: FlatSegment;
  /** First element of the parameter in the segment. */
  readonly #offset: number;
  #used = false;
  #hasValues = false;
  #isGradPending = false;
  /** The gradient of this rank's elements. Set at the end of the pass that reduced it, unset by {@link clearGradient}. */
  #owned: Tensor | undefined;

  constructor(segment: FlatSegment, parameter: Parameter, offset: number, shard: ShardLayout, group: ProcessGroup) {
    this.flatShard = segment;
    this.parameter = parameter;
    this.#offset = offset;
    this.localShard = shard;
    this.shard = parameter.globalLayout(shard);
    this.sink = new GradientSlot({
      place: () => segment.gradients.viewOf(parameter, offset),
      dtype: segment.unit.policy.reduceDtype,
      direct: segment.writesDirectly,
      onContribution: () => {
        this.#used = true;
        segment.unit.joinPass();
      },
    });
    this.sharers = group.size === 1 ? undefined : {
      ranks: group,
      layoutOf: (rank) => shardLayoutOf(segment.plan, offset, parameter.shape, rank),
    };
    const own = normReducerOf(group);
    this.normReducer = reduceOver([own, ...parameter.placements.map(({ axis }) => axis.normReducer)]) ?? own;
  }

  /** The unit that the parameter belongs to. */
  get unit(): FsdpUnit {
    return this.flatShard.unit;
  }

  get reducer(): GradientReducer {
    return this.unit;
  }

  /** True if a backward on this rank has reached the parameter since its gradient was cleared. */
  get used(): boolean {
    return this.#used;
  }

  /** True if the gradient is reduced but `parameter.grad` is not set yet. */
  get isGradPending(): boolean {
    return this.#isGradPending;
  }

  /** True if the parameter uses memory of the segment's gradients. */
  get holdsGradient(): boolean {
    return this.#owned !== undefined || this.hasUnreduced();
  }

  hasValues(): boolean {
    return this.#hasValues;
  }

  materialize(): void {
    this.#hasValues = true;
  }

  vacate(): void {
    this.#hasValues = false;
    this.unit.reshard(); // the unsharded buffer has the values, too
  }

  hasUnreduced(): boolean {
    return this.sink.gradient() !== undefined || this.#isGradPending;
  }

  gradient(): Tensor | undefined {
    return this.#owned;
  }

  clearGradient(): void {
    this.#used = false;
    this.#isGradPending = false;
    this.#owned?.dispose();
    this.#owned = undefined;
    this.sink.clear();
    this.flatShard.releaseGradient(this);
  }

  /** Completes the unsharded gradient before its reduction: adds this pass's contributions, or writes zeros if there are none. */
  prepareReduction(): void {
    this.#isGradPending = this.parameter.requiresGrad;
    this.sink.finish();
    if (this.sink.gradient() !== undefined) return;
    using view = this.flatShard.gradients.viewOf(this.parameter, this.#offset);
    view.device.kernels.fill({ dtype: view.dtype, n: view.numel, value: 0, dst: view.ptr });
  }

  /** Sets the gradient of this rank's elements, if some rank used the parameter. */
  publishGrad(used: boolean): void {
    this.#isGradPending = false;
    if (!used) return;
    this.#owned ??= this.flatShard.gradients.sharded(this.shard);
    this.parameter.announceGradient();
  }
}
