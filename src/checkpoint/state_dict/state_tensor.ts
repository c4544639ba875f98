/**
 * Values of state dicts, and how they come from and go to what this rank holds: in parts without communication, full tensors
 * by way of {@link gatherFull} and {@link scatterFull}. Which names they have is left to others.
 *
 * @module
 */
import { requireKnownKeys } from "../../config/known_keys.ts";
import { at } from "../../at.ts";
import type { ProcessGroup } from "../../comm/process_group.ts";
import { float32 } from "../../dtype.ts";
import { ArgumentError, CheckpointError } from "../../errors.ts";
import { numelOf, type Shape } from "../../shape.ts";
import { type Box, fullBox, placedBoxes, sharedSlices } from "../../tensor/shard_layout.ts";
import type { ParameterWriting } from "../../tensor/write.ts";
import { requireRanks } from "../format/ranks.ts";
import { type FullTensorOptions, gatherFull, scatterFull } from "./full_tensor.ts";
import { readHeld, writeHeld } from "./held_values.ts";
import { type HeldTensor, type LoadReport, requireFit } from "./state_dict.ts";

/** The name of a state dict that a caller gives, in messages. */
const GIVEN = "the state dict that was given";

/** A tensor of a state dict: the elements of it that there are. */
export interface StateTensor {
  /** Shape of the full tensor. */
  readonly shape: Shape;
  /** Boxes of the full tensor in the values' order: this rank's boxes, or a single box of all elements. */
  readonly boxes: readonly Box[];
  /** The values of the boxes, each row-major. Of a sharded state dict they are a copy of what the model holds now. */
  toArray(): Float32Array<ArrayBuffer>;
}

/** Options of state dicts, by PyTorch's names (`StateDictOptions`). */
export interface StateDictOptions {
  /** The group of all ranks that hold the model. A sharded state dict can be got without it. */
  readonly group?: ProcessGroup;
  /** True if tensors are full; else each rank has its own elements. @default false */
  readonly fullStateDict?: boolean;
  /**
   * Got: a copy in host memory, that later steps do not change; of full tensors on rank 0 alone, the others get an empty state
   * dict. @default false: this rank's memory itself, or copies of full tensors on every rank
   */
  readonly cpuOffload?: boolean;
  /** Got: leaves out parameters that are not trained. @default false */
  readonly ignoreFrozenParams?: boolean;
  /** Set: refuses what is missing or unexpected; else it is reported. @default true */
  readonly strict?: boolean;
  /** Set: rank 0 alone gives full tensors, the others give an empty state dict. Needs `fullStateDict`. @default false */
  readonly broadcastFromRank0?: boolean;
  /** Most bytes of full tensors that are sent at once. @default 4 MiB */
  readonly bufferBytes?: number;
}

/** Refuses options of state dicts that nothing reads. */
export function requireStateDictOptions(what: string, options: StateDictOptions): void {
  requireKnownKeys(what, options, {
    ...{ group: true, fullStateDict: true, cpuOffload: true, ignoreFrozenParams: true, strict: true } as const,
    ...{ broadcastFromRank0: true, bufferBytes: true } as const,
  });
  if (options.group !== undefined) requireRanks(what, options.group);
}

/** A tensor in host memory. */
function hostTensor(
  { shard: { shape } }: HeldTensor,
  boxes: readonly Box[],
  values: Float32Array<ArrayBuffer>,
): StateTensor {
  return { shape, boxes, toArray: () => values };
}

/** The values that this rank holds now. */
function heldValues(tensor: HeldTensor): Float32Array<ArrayBuffer> {
  const values = new Float32Array(tensor.shard.numel);
  readHeld(tensor, 0, values);
  return values;
}

/**
 * The values of tensors, as the options say; empty where another rank gets them. Collective for full tensors.
 *
 * @throws {ArgumentError} if full tensors are wanted of ranks that are not given
 */
export function readState<T extends HeldTensor>(
  tensors: readonly T[],
  { group, fullStateDict = false, cpuOffload = false, bufferBytes }: StateDictOptions,
): ReadonlyMap<T, StateTensor> {
  if (!fullStateDict) {
    return new Map(tensors.map((tensor) => {
      const { shard: { shape, boxes } } = tensor;
      if (cpuOffload) return [tensor, hostTensor(tensor, boxes, heldValues(tensor))];
      return [tensor, { shape, boxes, toArray: () => heldValues(tensor) }];
    }));
  }
  const whole = group === undefined
    ? new Map(tensors.map((tensor) => [tensor, heldValues(requireUnsharded(tensor))]))
    : gatherFull(tensors, cpuOffload ? "rank 0" : "all ranks", { group, bufferBytes });
  return new Map(tensors.flatMap((tensor) => {
    const values = whole.get(tensor);
    return values === undefined ? [] : [[tensor, hostTensor(tensor, [fullBox(tensor.shard.shape)], values)]];
  }));
}

function requireUnsharded<T extends HeldTensor>(tensor: T): T {
  const { name, shard: { shape, numel } } = tensor;
  if (numel === numelOf(shape)) return tensor;
  throw new ArgumentError(
    `Cannot make '${name}' whole: this rank holds ${numel} of its ${
      numelOf(shape)
    } elements; give the group of its ranks, ` +
      "e.g. { fullStateDict: true, group: run.group }",
  );
}

/** The tensors that are to be overwritten, and the new values. */
export interface StateChange {
  readonly tensors: readonly HeldTensor[];
  readonly given: ReadonlyMap<string, StateTensor>;
  /** The owner of the tensors: `model` or `optimizer`. */
  readonly what: string;
  /** Opens the memory for writing, if need be. @throws {ArgumentError} if what is missing has no values to keep */
  readonly open: (missing: readonly string[]) => ParameterWriting | undefined;
}

/**
 * Overwrites what this rank holds. Collective where there is a group: what one rank refuses, all do, before anything is
 * written.
 *
 * @throws {ArgumentError} if options do not go together
 * @throws {CheckpointError} listing what does not fit
 */
export function writeState(change: StateChange, options: StateDictOptions): LoadReport {
  const { group, fullStateDict = false, broadcastFromRank0 = false } = options;
  if (broadcastFromRank0 && !fullStateDict) {
    throw new ArgumentError(
      "broadcastFromRank0 needs fullStateDict: true, as rank 0 has no other's part of a sharded one",
    );
  }
  if (!broadcastFromRank0) return writeOwn(change, options);
  if (group === undefined) {
    throw new ArgumentError("broadcastFromRank0 needs the group of the ranks: { group: run.group }");
  }
  return broadcastState(change, options, { group, bufferBytes: options.bufferBytes });
}

/** Every rank takes its elements from what it was given itself. */
function writeOwn({ tensors, given, what, open }: StateChange, { group, strict = true }: StateDictOptions): LoadReport {
  const check = (): LoadReport => {
    const report = requireGiven(tensors, given, what, strict);
    for (const tensor of tensors) {
      const state = given.get(tensor.name);
      if (state !== undefined) requireElements(tensor, state);
    }
    return report;
  };
  const report = group === undefined ? check() : group.agree(`set the ${what}'s state dict`, check);
  using writing = open(report.missing);
  for (const tensor of tensors) {
    const state = given.get(tensor.name);
    if (state === undefined) continue;
    const values = state.toArray();
    for (const { to, from, length } of takenSlices(tensor, state)) {
      writeHeld(tensor, to, values.subarray(from, from + length));
    }
  }
  writing?.complete();
  return report;
}

/** Every rank takes its elements from what rank 0 was given. */
function broadcastState(
  { tensors, given, what, open }: StateChange,
  { strict = true }: StateDictOptions,
  options: FullTensorOptions<ProcessGroup>,
): LoadReport {
  const { group } = options;
  const label = `set the ${what}'s state dict`;
  const own = group.agree(label, () => {
    if (group.rank !== 0) return { missing: [], unexpected: [] };
    const report = requireGiven(tensors, given, what, strict);
    for (const { name, shard: { shape } } of tensors) {
      const state = given.get(name);
      if (state !== undefined) requireElements({ name, shard: { shape, boxes: [fullBox(shape)] } }, state);
    }
    return report;
  });
  const report: LoadReport = JSON.parse(at(group.exchangeText(JSON.stringify(own), label), 0, "report of rank"));
  const missing = new Set(report.missing);
  const parts = tensors.filter(({ name }) => !missing.has(name)).map((held) => {
    return { held, box: fullBox(held.shard.shape) };
  });
  using writing = open(report.missing);
  for (const { part: { held }, start, values } of scatterFull(parts, options)) {
    const state = given.get(held.name);
    if (group.rank === 0 && state !== undefined) values.set(state.toArray().subarray(start, start + values.length));
  }
  writing?.complete();
  return report;
}

/** Compares names and shapes. */
function requireGiven(
  tensors: readonly HeldTensor[],
  given: ReadonlyMap<string, StateTensor>,
  what: string,
  strict: boolean,
): LoadReport {
  const code = float32.safetensors;
  const expected = new Map(tensors.map(({ name, shard }) => [name, shard.shape]));
  const found = new Map([...given].map(([name, { shape }]) => [name, { shape, code }]));
  return requireFit(expected, found, { where: GIVEN, what, codes: [code], strict });
}

/** The places of this rank's elements in its memory and among the given elements. */
function takenSlices(
  { shard }: { readonly shard: { readonly boxes: readonly Box[] } },
  { boxes }: StateTensor,
): { readonly to: number; readonly from: number; readonly length: number }[] {
  const given = placedBoxes({ boxes });
  return placedBoxes(shard).flatMap(({ box, local: to }) =>
    given.flatMap(({ box: other, local: from }) =>
      sharedSlices(box, other).map(({ inFirst, inSecond, length }) => ({
        to: to + inFirst,
        from: from + inSecond,
        length,
      }))
    )
  );
}

/** Refuses a tensor that lacks elements, or has other than it says. */
function requireElements(
  tensor: { readonly name: string; readonly shard: { readonly shape: Shape; readonly boxes: readonly Box[] } },
  state: StateTensor,
): void {
  const count = (boxes: readonly Box[]): number => boxes.reduce((sum, { sizes }) => sum + numelOf(sizes), 0);
  const wanted = count(tensor.shard.boxes);
  const found = takenSlices(tensor, state).reduce((sum, { length }) => sum + length, 0);
  if (found !== wanted) {
    const remedy = "a sharded state dict fits the cuts that it was got from; give whole tensors, or use loadCheckpoint";
    throw new CheckpointError(
      GIVEN,
      `Expected ${wanted} elements that this rank holds, got ${found}: ${remedy}`,
      tensor.name,
    );
  }
  const { length } = state.toArray();
  if (length === count(state.boxes)) return;
  throw new CheckpointError(
    GIVEN,
    `Expected the ${count(state.boxes)} elements of its boxes, got ${length}`,
    tensor.name,
  );
}
