/**
 * Unsharded matrices for updates that need all elements of a matrix. Each parameter of a flat shard has an owner among the ranks that
 * share it. The owner receives the other ranks' parts, computes with the unsharded matrix, and sends each rank its part of the result.
 * What it computes is what a single rank would, so the bits do not depend on the number of ranks. Where a rank has all elements, as in
 * DDP, it owns all matrices.
 *
 * @module
 */
import { at } from "../at.ts";
import { type DevicePtr, devicePtr } from "../device/device.ts";
import { copyAcross, type MemoryPlace } from "../device/offload.ts";
import type { DType } from "../dtype.ts";
import { InternalError, UnsupportedError } from "../errors.ts";
import { numelOf } from "../shape.ts";
import type { Parameter } from "../tensor/parameter.ts";
import type { ShardMessage, Sharers } from "../tensor/parameter_storage.ts";
import { elementSlices, fullLayout, type ShardLayout } from "../tensor/shard_layout.ts";
import type { WorkBuffer, WorkMemory } from "./work_memory.ts";

/** Owners by the list of parameters that they were chosen for. */
const OWNERS: WeakMap<readonly Parameter[], ReadonlyMap<Parameter, number>> = new WeakMap();

/**
 * The owner of each parameter, the same on all ranks: the rank with the fewest elements so far, in the order of sizes.
 *
 * @throws {UnsupportedError} if a parameter is a part of a larger tensor, or is not divided into ranges
 */
function ownersOf(parameters: readonly Parameter[]): ReadonlyMap<Parameter, number> {
  const known = OWNERS.get(parameters);
  if (known !== undefined) return known;
  const ranks = Math.max(...parameters.map(({ storage: { sharers } }) => sharers?.ranks.size ?? 1));
  const load = new Array<number>(ranks).fill(0);
  const owners = new Map<Parameter, number>();
  const order = parameters.map((parameter, index) => ({ parameter, index }))
    .sort((a, b) => b.parameter.numel - a.parameter.numel || a.index - b.index);
  for (const { parameter } of order) {
    requireRanges(parameter);
    const owner = load.indexOf(Math.min(...load));
    load[owner] = at(load, owner, "rank") + parameter.numel;
    owners.set(parameter, owner);
  }
  OWNERS.set(parameters, owners);
  return owners;
}

function requireRanges({ fqn, placements, storage: { sharers } }: Parameter): void {
  const [placement] = placements;
  if (placement !== undefined) {
    throw new UnsupportedError(
      `Cannot update '${fqn}' as an unsharded matrix: axis '${placement.axis.name}' cuts it along dim ${placement.dim}. Use AdamW, Lion or SGD, which update parts`,
    );
  }
  for (let rank = 0; rank < (sharers?.ranks.size ?? 0); rank++) {
    const slices = sharers === undefined ? [] : elementSlices(sharers.layoutOf(rank));
    if (slices.length <= 1) continue;
    throw new UnsupportedError(
      `Cannot update '${fqn}' as an unsharded matrix: it is sharded along a dim behind its first; shard it flat or along dim 0`,
    );
  }
}

/** True if this rank updates the unsharded parameter. */
function isOwner(parameter: Parameter, parameters: readonly Parameter[]): boolean {
  const { sharers } = parameter.storage;
  return sharers === undefined || ownersOf(parameters).get(parameter) === sharers.ranks.rank;
}

/** The layout of a state that only a parameter's owner has. */
export function ownedLayout(
  shapeOf: (parameter: Parameter) => readonly number[],
): (parameter: Parameter, parameters: readonly Parameter[]) => ShardLayout {
  return (parameter, parameters) => {
    const shape = shapeOf(parameter);
    return isOwner(parameter, parameters) ? fullLayout(shape) : { shape, boxes: [], numel: 0, offset: 0 };
  };
}

/** A part of a parameter on the device that computes with it. */
interface PartPlace {
  readonly first: number;
  readonly numel: number;
}

function partOf({ layoutOf }: Sharers, rank: number): PartPlace {
  const [slice] = elementSlices(layoutOf(rank));
  return slice === undefined ? { first: 0, numel: 0 } : { first: slice.offset, numel: slice.length };
}

/** Unsharded values of one kind of some parameters of a bucket: gradients, then updates. */
export class OwnedMatrices {
  readonly #parameters: readonly Parameter[];
  readonly #bucket: readonly Parameter[];
  readonly #dtype: DType;
  readonly #unit: string;
  /** This rank's part of each parameter, on the device that computes with it. */
  readonly #parts = new Map<Parameter, WorkBuffer>();
  /** The unsharded values of the parameters that this rank owns; the part itself where it has all elements. */
  readonly #wholes = new Map<Parameter, WorkBuffer>();

  /**
   * Plans memory for parts and for the matrices that this rank owns.
   *
   * @param parameters some of `bucket`, in its order, the same on all ranks
   * @param bucket all parameters of the bucket, which decide who owns what
   */
  constructor(
    parameters: readonly Parameter[],
    bucket: readonly Parameter[],
    dtype: DType,
    unit: string,
    work: WorkMemory,
  ) {
    this.#parameters = parameters;
    this.#bucket = bucket;
    this.#dtype = dtype;
    this.#unit = unit;
    for (const parameter of parameters) {
      const { device, storage: { sharers, shard } } = parameter;
      const part = work.plan(device, shard.numel * dtype.byteLength);
      this.#parts.set(parameter, part);
      if (!isOwner(parameter, bucket)) continue;
      this.#wholes.set(parameter, sharers === undefined ? part : work.plan(device, parameter.numel * dtype.byteLength));
    }
  }

  /** Address of this rank's part of a parameter, on `parameter.device`. */
  part(parameter: Parameter): DevicePtr {
    const part = this.#parts.get(parameter);
    if (part === undefined) throw new InternalError(`'${parameter.fqn}' is no matrix of '${this.#unit}'`);
    return part.ptr;
  }

  /** The parameters that this rank owns, with their unsharded values. */
  get owned(): ReadonlyMap<Parameter, WorkBuffer> {
    return this.#wholes;
  }

  /** Writes this rank's part of a parameter from memory that may lie on another device. */
  write(parameter: Parameter, from: MemoryPlace): void {
    const { device, storage: { shard: { numel } } } = parameter;
    if (numel > 0) copyAcross({ device, ptr: this.part(parameter) }, from, numel * this.#dtype.byteLength);
  }

  /** Sends all parts to the owners. Every rank that shares the parameters calls it. */
  sendToOwners(): void {
    this.#move("send");
  }

  /** Sends every rank its part of what the owners have. Every rank that shares the parameters calls it. */
  returnToRanks(): void {
    this.#move("receive");
  }

  /** @param kind direction of the messages of a rank that does not own the matrix */
  #move(kind: ShardMessage["kind"]): void {
    const messages = new Map<Sharers["ranks"], ShardMessage[]>();
    const owners = ownersOf(this.#bucket);
    const width = this.#dtype.byteLength;
    for (const parameter of this.#parameters) {
      const { device, storage: { sharers } } = parameter;
      if (sharers === undefined) continue;
      const { ranks } = sharers;
      const list = messages.get(ranks) ?? [];
      messages.set(ranks, list);
      const owner = owners.get(parameter);
      if (owner === undefined) throw new InternalError(`'${parameter.fqn}' has no owner`);
      const own = partOf(sharers, ranks.rank);
      const whole = this.#wholes.get(parameter);
      if (whole === undefined) {
        if (own.numel > 0) list.push({ kind, ptr: this.part(parameter), byteLength: own.numel * width, peer: owner });
        continue;
      }
      const placeOf = ({ first }: PartPlace): DevicePtr => devicePtr(whole.ptr + first * width);
      const [inside, outside] = [placeOf(own), this.part(parameter)];
      if (own.numel > 0) {
        if (kind === "send") device.copy(inside, outside, own.numel * width);
        else device.copy(outside, inside, own.numel * width);
      }
      for (let peer = 0; peer < ranks.size; peer++) {
        const part = partOf(sharers, peer);
        if (peer === owner || part.numel === 0) continue;
        const ownKind = kind === "send" ? "receive" : "send";
        list.push({ kind: ownKind, ptr: placeOf(part), byteLength: part.numel * width, peer });
      }
    }
    for (const [ranks, list] of messages) if (list.length > 0) ranks.transfer(list, this.#unit).wait();
  }
}

/** Number of matrices in a parameter, and their sizes: the last two dims. */
export function matrixSizes(
  { shape }: Pick<Parameter, "shape">,
): { readonly outer: number; readonly rows: number; readonly cols: number } {
  const [rows, cols] = [at(shape, shape.length - 2, "dim"), at(shape, shape.length - 1, "dim")];
  return { outer: numelOf(shape.slice(0, -2)), rows, cols };
}
