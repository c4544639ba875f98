/**
 * One replicated parameter: its whole values lie where they did, its gradient in a bucket.
 *
 * @module
 */
import { InternalError } from "../errors.ts";
import { GradientSlot } from "../tensor/gradient_slot.ts";
import type { GradientReducer, Parameter, ParameterRun, ParameterStorage } from "../tensor/parameter.ts";
import type { ShardLayout } from "../tensor/shard_layout.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { GradientBucket } from "./bucket.ts";

/** The storage of a replicated parameter. */
export class ReplicatedStorage implements ParameterStorage {
  readonly kind = "replicated";
  readonly parameter: Parameter;
  readonly shard: ShardLayout;
  readonly run: ParameterRun;
  readonly reducer: GradientReducer;
  readonly runOffset: number;
  readonly normReducer = undefined;
  /** The gradient of the passes since the last reduction. */
  readonly sink: GradientSlot;
  /** Where the values are. */
  readonly #values: ParameterStorage;
  #used = false;
  /** The gradient of all reductions since it was cleared; hidden until some rank has used the parameter. */
  #reduced: Tensor | undefined;
  #shown = false;

  /**
   * @param parameter a plain one
   * @param reducer the replicated module
   * @param bucketOf joins the pass under way and gives the bucket where the gradient is summed
   */
  constructor(
    parameter: Parameter,
    reducer: GradientReducer,
    bucketOf: (storage: ReplicatedStorage) => GradientBucket,
  ) {
    this.parameter = parameter;
    this.reducer = reducer;
    ({ shard: this.shard, run: this.run, runOffset: this.runOffset } = parameter.storage);
    this.#values = parameter.storage;
    this.sink = new GradientSlot({
      place: () => bucketOf(this).place(this),
      onContribution: () => {
        this.#used = true;
        bucketOf(this);
      },
    });
  }

  /** Whether a backward on this rank has reached it since its gradient was cleared. */
  get used(): boolean {
    return this.#used;
  }

  hasValues(): boolean {
    return this.#values.hasValues();
  }

  materialize(): void {
    this.#values.materialize();
  }

  hasUnreduced(): boolean {
    return this.sink.gradient() !== undefined;
  }

  gradient(): Tensor | undefined {
    return this.#shown ? this.#reduced : undefined;
  }

  clearGradient(): void {
    this.#used = false;
    this.#shown = false;
    this.#reduced?.dispose();
    this.#reduced = undefined;
    this.sink.clear();
  }

  /** Adds what was just reduced to what was reduced before; the handle becomes the storage's. */
  addReduced(sum: Tensor | undefined): void {
    if (sum === undefined) throw new InternalError(`no sum for '${this.parameter.fqn}'`);
    this.sink.clear();
    if (this.#reduced === undefined) {
      this.#reduced = sum;
      return;
    }
    const { ptr: dst, dtype: dstDtype, device, numel: n } = this.#reduced;
    device.kernels.accumulate({ dstDtype, srcDtype: sum.dtype, n, dst, src: sum.ptr });
    sum.dispose();
  }

  /** The pass has ended; some rank has used the parameter since gradients were cleared, or none has. */
  settle(used: boolean): void {
    this.#shown = used;
    if (used) return;
    this.#reduced?.dispose();
    this.#reduced = undefined;
  }
}
