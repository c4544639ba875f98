/**
 * Copies full tensors between the host memory of one rank and the parts that all ranks hold, piece by piece through a staging buffer in
 * device memory, so that no other rank ever holds a full tensor.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { ProcessGroup } from "../../comm/process_group.ts";
import { Buffer } from "../../device/buffer.ts";
import type { Device } from "../../device/device.ts";
import { copyAcross, type MemoryPlace } from "../../device/offload.ts";
import { float32 } from "../../dtype.ts";
import { ArgumentError } from "../../errors.ts";
import { numelOf } from "../../shape.ts";
import { type Box, elementSlices, placedBoxes, sharedSlices } from "../../tensor/shard_layout.ts";
import type { Ranks } from "../format/ranks.ts";
import { agreeOnWriters } from "./partition.ts";
import { placeOf, readHeld, writeHeld } from "./held_values.ts";
import type { HeldTensor } from "./state_dict.ts";

/** Bytes of the staging buffer unless others are asked for. */
const BUFFER_BYTES = 4 << 20;

/** Options for moving full tensors. */
export interface FullTensorOptions<G extends Ranks = Ranks> {
  /** The group of all ranks that hold parts. */
  readonly group: G;
  /** Most bytes that are moved at once. @default 4 MiB */
  readonly bufferBytes?: number | undefined;
}

/** Elements from `start` on. */
interface TensorPiece {
  readonly start: number;
  readonly length: number;
}

/** Elements that a buffer holds. */
function mostElements({ bufferBytes = BUFFER_BYTES }: FullTensorOptions): number {
  const most = Math.floor(bufferBytes / float32.byteLength);
  if (!(most >= 1)) throw new ArgumentError(`bufferBytes must hold an element of 4 bytes, got ${bufferBytes}`);
  return most;
}

/** Cuts `numel` elements into pieces that a buffer holds. */
function piecesOf(numel: number, options: FullTensorOptions): TensorPiece[] {
  const most = mostElements(options);
  return Array.from({ length: Math.ceil(numel / most) }, (_, i) => {
    return { start: i * most, length: Math.min(most, numel - i * most) };
  });
}

/** The part of a slice that lies within a piece, in the same element indices as `from`; undefined if there is none. */
function overlap(
  from: number,
  length: number,
  piece: TensorPiece,
): { readonly skipped: number; readonly count: number } | undefined {
  const first = Math.max(from, piece.start);
  const count = Math.min(from + length, piece.start + piece.length) - first;
  return count > 0 ? { skipped: first - from, count } : undefined;
}

/**
 * Memory for one piece. Collective: where one rank has not so much, all fail before anything is moved.
 *
 * @param numels lengths of the arrays whose pieces this rank moves
 */
function openStaging(
  device: Device | undefined,
  numels: readonly number[],
  options: FullTensorOptions,
  label: string,
): Buffer | undefined {
  using opened = new DisposableStack();
  const staging = options.group.agree(label, () => {
    const length = Math.min(mostElements(options), numels.reduce((most, numel) => Math.max(most, numel), 0));
    if (device === undefined || length === 0) return undefined;
    return opened.use(Buffer.allocate(device, length * float32.byteLength, "state dict"));
  });
  opened.move();
  return staging;
}

/**
 * Gathers tensors, one at a time. Collective.
 *
 * @param to the ranks that receive them: rank 0 alone, by messages, or every rank, by broadcasts
 * @returns the values of each, row-major; of none where this rank gets none
 */
export function gatherFull(
  tensors: readonly HeldTensor[],
  to: "rank 0" | "all ranks",
  options: FullTensorOptions<ProcessGroup>,
): Map<HeldTensor, Float32Array<ArrayBuffer>> {
  const { group } = options;
  const label = "gather the state dict";
  const writers = agreeOnWriters(tensors, group, label, "first");
  const gathered = new Map<HeldTensor, Float32Array<ArrayBuffer>>();
  const isStaged = (rank: number): boolean =>
    group.size > 1 && (to === "all ranks" || rank !== 0 && (group.rank === 0 || rank === group.rank));
  const staged = writers.flatMap((parts) => parts.filter(({ rank }) => isStaged(rank)));
  using staging = openStaging(tensors[0]?.computeDevice, staged.map(({ boxes }) => numelOfAll(boxes)), options, label);
  for (const [i, tensor] of tensors.entries()) {
    const { name, shard: { shape } } = tensor;
    const whole = to === "all ranks" || group.rank === 0 ? new Float32Array(numelOf(shape)) : undefined;
    if (whole !== undefined) gathered.set(tensor, whole);
    for (const { rank, boxes } of at(writers, i, "writers of tensor")) {
      const numel = numelOfAll(boxes);
      const slices = elementSlices({ shape, boxes });
      for (const piece of piecesOf(numel, options)) {
        const through = isStaged(rank) ? staging : undefined;
        const moved = movePiece(tensor, piece, { rank, to, group, staging: through, label: `${label}: ${name}` });
        if (whole === undefined) continue;
        const values = new Float32Array(piece.length);
        if (moved !== undefined) moved.device.copyOut(new Uint8Array(values.buffer), moved.ptr);
        else if (rank === group.rank) readHeld(tensor, piece.start, values);
        else continue;
        for (const { offset, length, local } of slices) {
          const part = overlap(local, length, piece);
          if (part === undefined) continue;
          const from = local + part.skipped - piece.start;
          whole.set(values.subarray(from, from + part.count), offset + part.skipped);
        }
      }
    }
  }
  return gathered;
}

function numelOfAll(boxes: readonly Box[]): number {
  return boxes.reduce((sum, { sizes }) => sum + numelOf(sizes), 0);
}

/**
 * Sends a piece of the elements of rank `rank` to its receivers, as float32, and gives its place there; undefined where it is not
 * moved.
 */
function movePiece(
  tensor: HeldTensor,
  { start, length }: TensorPiece,
  { rank, to, group, staging, label }: {
    readonly rank: number;
    readonly to: "rank 0" | "all ranks";
    readonly group: ProcessGroup;
    /** The buffer that the piece is moved to; undefined where this rank neither sends nor receives it. */
    readonly staging: Buffer | undefined;
    readonly label: string;
  },
): MemoryPlace | undefined {
  const byteLength = length * float32.byteLength;
  if (staging === undefined) return undefined;
  const { device, computeDevice, dtype } = tensor;
  const moved = { device: computeDevice, ptr: staging.ptr };
  const own = rank === group.rank ? { device, ptr: placeOf(tensor, start) } : undefined;
  if (own !== undefined && dtype === float32) copyAcross(moved, own, byteLength);
  else if (own !== undefined) {
    const values = new Float32Array(length);
    readHeld(tensor, start, values);
    computeDevice.copyIn(moved.ptr, new Uint8Array(values.buffer));
  }
  if (to === "all ranks") group.broadcast(moved.ptr, byteLength, rank, label).wait();
  else if (own !== undefined) group.send(moved.ptr, byteLength, 0, label).wait();
  else group.receive(moved.ptr, byteLength, rank, label).wait();
  return moved;
}

/** Elements that all ranks hold together; each rank takes its own. */
export interface FullTensorPart {
  /** This rank's part. */
  readonly held: HeldTensor;
  /** The box of the tensor that the elements are, row-major. */
  readonly box: Box;
}

/** A piece that rank 0 is to fill in. */
export interface PieceToFill<P extends FullTensorPart> extends TensorPiece {
  readonly part: P;
  /** The piece's elements, from `start` in the box on; what other ranks put there is dropped. */
  readonly values: Float32Array<ArrayBuffer>;
}

/**
 * Gives every rank its own elements of what rank 0 has: yields piece after piece, which rank 0 has filled in when the next is
 * asked for. Collective; memory must be open for writing.
 */
export function* scatterFull<P extends FullTensorPart>(
  parts: readonly P[],
  options: FullTensorOptions,
): Generator<PieceToFill<P>, void> {
  const { group } = options;
  const numels = group.size > 1 ? parts.map(({ box: { sizes } }) => numelOf(sizes)) : [];
  using staging = openStaging(parts[0]?.held.computeDevice, numels, options, "scatter the state dict");
  for (const part of parts) {
    const { held, held: { name, shard, computeDevice }, box } = part;
    const runs = placedBoxes(shard).flatMap(({ box: own, local }) =>
      sharedSlices(own, box).map(({ inFirst, inSecond, length }) => ({
        local: local + inFirst,
        inBox: inSecond,
        length,
      }))
    );
    for (const piece of piecesOf(numelOf(box.sizes), options)) {
      const values = new Float32Array(piece.length);
      yield { ...piece, part, values };
      if (staging !== undefined) {
        const bytes = new Uint8Array(values.buffer);
        const { ptr: shared } = staging;
        if (group.rank === 0) computeDevice.copyIn(shared, bytes);
        group.broadcast(shared, values.byteLength, 0, `scatter the state dict: ${name}`).wait();
        if (group.rank !== 0) computeDevice.copyOut(bytes, shared);
      }
      for (const { local, inBox, length } of runs) {
        const taken = overlap(inBox, length, piece);
        if (taken === undefined) continue;
        const from = inBox + taken.skipped - piece.start;
        writeHeld(held, local + taken.skipped, values.subarray(from, from + taken.count));
      }
    }
  }
}
