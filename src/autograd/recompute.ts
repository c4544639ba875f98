/**
 * Regions of a graph that keep what they were given instead of what their nodes would save. The first node that asks for
 * something saved has the region computed again, and all that its nodes save is lent to them.
 *
 * Note [Recomputation]: the graph is the forward's, and only what it saved comes from the recomputation, whose own nodes nobody
 * runs. So gradients are added in the same order as without, to the same bits, and no backward runs inside another one. Each
 * recorded op of a region has a slot. The recomputation passes the slots in order: it must record the same ops on the same inputs.
 *
 * @module
 */
import { at } from "../at.ts";
import { ArgumentError, InternalError } from "../errors.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { withRecording } from "./mode.ts";
import { requireUnwritten, type SavedTensors } from "./saved.ts";

/** What is computed again. */
export interface Recomputed {
  /** For messages. */
  readonly name: string;
  /** What the region is computed from, and owns. */
  readonly inputs: readonly Tensor[];
  /** Whether results of the ops of that name are kept. */
  keeps(op: string): boolean;
  /** Computes it again. */
  run(): void;
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
  /** What the op saved: the number of an input in whose memory it lies, or a handle. */
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

  /** What the recomputation takes instead of computing the op; the handles in it are the caller's. */
  take(inputs: readonly Tensor[]): Pick<RecordedOp, "outputs" | "saved"> | undefined {
    if (this.#kept === undefined) return undefined;
    const { outputs, saved } = this.#kept;
    const handle = (tensor: Tensor | number): Tensor =>
      (typeof tensor === "number" ? at(inputs, tensor, "input") : tensor).alias();
    return { outputs: outputs.map(handle), saved: saved.map(handle) };
  }

  /** Takes what the recomputation saved. */
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
  /** Slots whose nodes are there, and the forward while it is under way. */
  #users = 1;
  /** How many slots the recomputation has passed; undefined outside of one. */
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

  /** Results of the op that is about to run, where they are kept. */
  take(inputs: readonly Tensor[]): Pick<RecordedOp, "outputs" | "saved"> | undefined {
    return this.#passed === undefined ? undefined : this.#slots[this.#passed]?.take(inputs);
  }

  /** Takes what an op has saved. */
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
      withRecording(true, () => within(this, () => this.#source.run()));
      const next = this.#slots[this.#passed];
      if (next !== undefined) this.refuse("the end", next.description);
    } finally {
      this.#passed = undefined;
      this.#dropInputs();
    }
  }

  /** One user less; without any, nobody asks for what it would compute. */
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
 * Runs a forward whose nodes save nothing: what they would save is computed again when the backward asks for it.
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

/** Whether a forward is computed again now, inside a backward pass. */
export function isRecomputing(): boolean {
  return current?.recomputing === true;
}

/** What the op that is about to be recorded gives, if it need not be computed again; the handles are the caller's. */
export function takeKept(inputs: readonly Tensor[]): Pick<RecordedOp, "outputs" | "saved"> | undefined {
  return current?.take(inputs);
}

/** Gives the region under way what an op has saved; undefined where there is none. */
export function saveInRegion(call: RecordedOp): { readonly saved: SavedTensors | undefined } | undefined {
  return current === undefined ? undefined : { saved: current.record(call) };
}
