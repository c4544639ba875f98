/**
 * One sharded parameter: which elements of it this rank owns, and its gradient in both forms, unsharded (before the reduction)
 * and sharded (after it).
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import { normReducerOf } from "../parallel/norm.ts";
import { GradientSlot } from "../tensor/gradient_slot.ts";
import { type NormReducer, reduceOver } from "../tensor/norm_reducer.ts";
import type { GradientReducer, Parameter, ParameterStorage } from "../tensor/parameter.ts";
import type { ShardLayout } from "../tensor/shard_layout.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { OwnedPart } from "./layout.ts";
import type { FlatSegment } from "./segment.ts";
import type { FsdpUnit } from "./unit.ts";

/** The storage of a sharded parameter. */
export class ShardedStorage implements ParameterStorage {
  readonly kind = "sharded";
  readonly parameter: Parameter;
  readonly shard: ShardLayout;
  /** The same elements as {@link shard}, of this rank's part of the global tensor: of what is gathered. */
  readonly localShard: ShardLayout;
  readonly runOffset: number;
  readonly sink: GradientSlot;
  readonly normReducer: NormReducer;
  readonly flatShard: FlatSegment;
  /** First element in the whole segment. */
  readonly #offset: number;
  #used = false;
  #hasValues = false;
  #isHidden = false;
  /** The gradient of the owned elements, shown when a pass that reduced it has ended. */
  #owned: Tensor | undefined;

  constructor(segment: FlatSegment, parameter: Parameter, offset: number, part: OwnedPart, group: ProcessGroup) {
    this.flatShard = segment;
    this.parameter = parameter;
    this.#offset = offset;
    this.localShard = part.shard;
    this.shard = parameter.globalLayout(part.shard);
    this.runOffset = part.runOffset;
    this.sink = new GradientSlot({
      place: () => segment.gradientPlace(parameter, offset),
      dtype: segment.unit.policy.reduceDtype,
      direct: segment.writesDirectly,
      onContribution: () => {
        this.#used = true;
        segment.unit.joinPass();
      },
    });
    const own = normReducerOf(group);
    this.normReducer = reduceOver([own, ...parameter.placements.map(({ axis }) => axis.normReducer)]) ?? own;
  }

  /** The unit it belongs to. */
  get unit(): FsdpUnit {
    return this.flatShard.unit;
  }

  get reducer(): GradientReducer {
    return this.unit;
  }

  /** Whether a backward on this rank has reached it since its gradient was cleared. */
  get used(): boolean {
    return this.#used;
  }

  /** Whether its gradient was reduced, on some ranks at least, and is not shown yet. */
  get isHidden(): boolean {
    return this.#isHidden;
  }

  /** Whether any gradient memory of the segment is in use by it. */
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
    this.unit.reshard(); // a gathered copy has the values
  }

  hasUnreduced(): boolean {
    return this.sink.gradient() !== undefined || this.#isHidden;
  }

  gradient(): Tensor | undefined {
    return this.#owned;
  }

  clearGradient(): void {
    this.#used = false;
    this.#isHidden = false;
    this.#owned?.dispose();
    this.#owned = undefined;
    this.sink.clear();
    this.flatShard.releaseGradient(this);
  }

  /** Closes the unsharded gradient, which is about to be reduced; without any contribution, zeros take the place. */
  prepareReduction(): void {
    this.#isHidden = this.parameter.requiresGrad;
    this.sink.finish();
    if (this.sink.gradient() !== undefined) return;
    using place = this.flatShard.gradientPlace(this.parameter, this.#offset);
    place.device.kernels.fill({ dtype: place.dtype, n: place.numel, value: 0, dst: place.ptr });
  }

  /** Shows the gradient of the owned elements, if some rank used the parameter. */
  show(used: boolean): void {
    this.#isHidden = false;
    if (!used) return;
    this.#owned ??= this.flatShard.shardedGradient(this.runOffset, this.shard.numel);
    this.parameter.announceGradient();
  }
}
