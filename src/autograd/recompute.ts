/**
 * Checkpointed regions of a graph, which keep their inputs instead of the tensors that their nodes would save. When the first
 * node asks for a saved tensor, the region is computed again, and all nodes get the tensors that they would have saved.
 *
 * Note [Recomputation]: the graph is the forward's; the nodes of the recomputation are never visited, and only their saved
 * tensors are used. So gradients are added in the same order as without checkpointing, to the same bits, and no backward happens
 * inside another backward. Each recorded op of a region has a slot. The recomputation passes the slots in order: it must record
 * the same ops on the same inputs.
 *
 * @module
 */
import { at } from "../at.ts";
import { ArgumentError, InternalError } from "../errors.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { withRecording } from "./mode.ts";
import { requireUnwritten, type SavedTensors } from "./saved.ts";

/** A region that can be computed again. */
export interface Recomputed {
  /** Name for messages. */
  readonly name: string;
  /** Inputs of the region, which it owns. */
  readonly inputs: readonly Tensor[];
  /** True if results of the ops of that name are kept. */
  keeps(op: string): boolean;
  /** Computes the region again. */
  compute(): void;
}

/** A call of an op, as the graph records it. */
export interface RecordedOp {
  readonly name: string;
  readonly inputs: readonly Tensor[];
  readonly outputs: readonly Tensor[];
  /** Handles that the graph owns. */
  readonly saved: readonly Tensor[];
}

/** Results of an op that is not computed again. */
interface KeptResults {
  readonly outputs: readonly Tensor[];
  /** Tensors that the op saved: the index of an input with the same memory, or a handle. */
  readonly saved: readonly (Tensor | number)[];
}

const describe = ({ name, outputs }: Pick<RecordedOp, "name" | "outputs">): string =>
  `'${name}' [${outputs.map(({ shape }) => shape.join(", ")).join("], [")}]`;

/** One recorded op of a region. */
class RecomputedTensors implements SavedTensors {
  readonly #region: Region;
  readonly #name: string;
  readonly #description: string;
  /** Versions of the inputs' memory when the forward read it. */
  readonly #versions: readonly number[];
  #kept: KeptResults | undefined;
  #lent: readonly Tensor[] | undefined;
  #freed = false;

  constructor(region: Region, call: RecordedOp, keeps: boolean) {
    const { name, inputs, outputs, saved } = call;
    this.#region = region;
    this.#name = name;
    this.#description = describe(call);
    this.#versions = inputs.map(({ buffer }) => buffer.version);
    if (keeps) {
      const kept = saved.map((tensor) => {
        const input = inputs.findIndex(({ buffer, layout }) => buffer === tensor.buffer && layout === tensor.layout);
        return input < 0 ? tensor.alias() : input;
      });
      this.#kept = { outputs: outputs.map((output) => output.alias()), saved: kept };
    }
    for (const tensor of saved) tensor.dispose();
  }

  get(): readonly Tensor[] {
    if (this.#lent === undefined) this.#region.recompute();
    if (this.#lent === undefined) throw new InternalError(`nothing was computed again for '${this.#name}'`);
    return this.#lent;
  }

  held(): readonly Tensor[] {
    const kept = this.#kept?.saved.filter((tensor) => typeof tensor !== "number");
    return [...this.#lent ?? this.#region.inputs, ...this.#kept?.outputs ?? [], ...kept ?? []];
  }

  free(): void {
    this.#freed = true;
    for (const tensor of this.#lent ?? []) tensor.dispose();
    this.#lent = [];
    this.#dropKept();
    this.#region.release();
  }

  /** Kept results, which replace the computation of the op; the caller owns the handles. */
  take(inputs: readonly Tensor[]): Pick<RecordedOp, "outputs" | "saved"> | undefined {
    if (this.#kept === undefined) return undefined;
    const { outputs, saved } = this.#kept;
    const handle = (tensor: Tensor | number): Tensor =>
      (typeof tensor === "number" ? at(inputs, tensor, "input") : tensor).alias();
    return { outputs: outputs.map(handle), saved: saved.map(handle) };
  }

  /** Takes the tensors that the recomputation saved. */
  lend(call: RecordedOp): void {
    const { inputs, saved } = call;
    if (this.#freed) { for (const tensor of saved) tensor.dispose(); }
    else this.#lent = saved;
    this.#dropKept();
    if (describe(call) !== this.#description) this.#region.refuse(describe(call), this.#description);
    for (const [i, input] of inputs.entries()) requireUnwritten(this.#name, input, this.#versions[i]);
  }

  get description(): string {
    return this.#description;
  }

  #dropKept(): void {
    const { outputs = [], saved = [] } = this.#kept ?? {};
    for (const tensor of [...outputs, ...saved]) if (typeof tensor !== "number") tensor.dispose();
    this.#kept = undefined;
  }
}

/** A region; see Note [Recomputation]. */
class Region {
  readonly #source: Recomputed;
  readonly #slots: RecomputedTensors[] = [];
  /** Number of slots with living nodes, plus 1 during the forward. */
  #users = 1;
  /** Number of slots that the recomputation has passed; undefined outside of one. */
  #passed: number | undefined;

  constructor(source: Recomputed) {
    this.#source = source;
  }

  get name(): string {
    return this.#source.name;
  }

  get inputs(): readonly Tensor[] {
    return this.#source.inputs;
  }

  get recomputing(): boolean {
    return this.#passed !== undefined;
  }

  /** Kept results of the next op; undefined if it must be computed. */
  take(inputs: readonly Tensor[]): Pick<RecordedOp, "outputs" | "saved"> | undefined {
    return this.#passed === undefined ? undefined : this.#slots[this.#passed]?.take(inputs);
  }

  /** Takes the tensors that an op saved. */
  record(call: RecordedOp): SavedTensors | undefined {
    if (this.#passed === undefined) {
      const slot = new RecomputedTensors(this, call, this.#source.keeps(call.name));
      this.#slots.push(slot);
      this.#users++;
      return slot;
    }
    const slot = this.#slots[this.#passed++];
    if (slot !== undefined) slot.lend(call);
    else {
      for (const tensor of call.saved) tensor.dispose();
      this.refuse(describe(call), "the end");
    }
    return undefined;
  }

  recompute(): void {
    this.#passed = 0;
    try {
      withRecording(true, () => within(this, () => this.#source.compute()));
      const next = this.#slots[this.#passed];
      if (next !== undefined) this.refuse("the end", next.description);
    } finally {
      this.#passed = undefined;
      this.#dropInputs();
    }
  }

  /** Removes a user; without any, the inputs are freed. */
  release(): void {
    if (--this.#users === 0) this.#dropInputs();
  }

  refuse(found: string, expected: string): never {
    throw new ArgumentError(
      `Cannot compute the activations of '${this.name}' again: the forward recorded ${expected} where the recomputation came to ${found}; a ` +
        "checkpointed module must compute the same each time, so what it depends on must not change until the backward",
    );
  }

  #dropInputs(): void {
    for (const input of this.inputs) input.dispose();
  }
}

let current: Region | undefined;

function within<T>(region: Region, body: () => T): T {
  const around = current;
  current = region;
  try {
    return body();
  } finally {
    current = around;
  }
}

/**
 * Calls a forward whose nodes save nothing: the tensors are computed again when the backward asks for them.
 *
 * @throws {ArgumentError} inside another such forward
 */
export function recordRegion<T>(source: Recomputed, body: () => T): T {
  const region = new Region(source);
  try {
    if (current !== undefined) {
      throw new ArgumentError(
        `Cannot checkpoint '${source.name}' inside '${current.name}', which is checkpointed and computes it again as it is; checkpoint ` +
          "one of the two",
      );
    }
    return within(region, body);
  } finally {
    region.release();
  }
}

/** True during a recomputation, inside a backward pass. */
export function isRecomputing(): boolean {
  return current?.recomputing === true;
}

/** The kept results of the next op, if it need not be recomputed; the caller owns the handles. */
export function takeKept(inputs: readonly Tensor[]): Pick<RecordedOp, "outputs" | "saved"> | undefined {
  return current?.take(inputs);
}

/** Hands the tensors that an op saved to the current region; undefined if there is none. */
export function saveInRegion(call: RecordedOp): { readonly saved: SavedTensors | undefined } | undefined {
  return current === undefined ? undefined : { saved: current.record(call) };
}
