/**
 * The files of a sharded checkpoint: the file of each box of each tensor, and writing the files of one rank. Files are named and
 * annotated as PyTorch's `HuggingFaceStorageWriter(save_distributed=True)` does (`torch/distributed/checkpoint/
 * hf_storage.py`). Callers decide which rank writes which boxes, and from which memory.
 *
 * @module
 */
import { float32 } from "../../dtype.ts";
import { InternalError } from "../../errors.ts";
import type { Shape } from "../../shape.ts";
import { placedBoxes } from "../../tensor/shard_layout.ts";
import type { WrittenFile } from "../format/pieces.ts";
import { writeSafetensors } from "../format/safetensors.ts";
import type { WritingRank } from "../state_dict/partition.ts";
import type { Manifest, SavedShare } from "./manifest.ts";

/** A tensor to be written. */
export interface TensorToWrite<S> {
  /** The source of the tensor's values. */
  readonly source: S;
  readonly name: string;
  readonly shape: Shape;
  /** The ranks that write boxes of the tensor, each with its boxes. */
  readonly writers: readonly WritingRank[];
}

/** A box and the file that holds it. */
export interface PlacedBox<S> extends SavedShare {
  readonly source: S;
  readonly name: string;
  readonly rank: number;
  /** First element, counted over all boxes of the tensor that the rank writes. */
  readonly local: number;
}

/** Tensors that are saved under one kind of file name. */
export interface FileGroup<S> {
  readonly tensors: readonly TensorToWrite<S>[];
  readonly boxes: readonly PlacedBox<S>[];
}

/** Gives each box its file. A file holds one box of a name, so a rank's k-th box of a tensor goes into its k-th file. */
export function placeBoxes<S>(prefix: string, tensors: readonly TensorToWrite<S>[]): FileGroup<S> {
  const number = (value: number): string => String(value).padStart(5, "0");
  const boxes = tensors.flatMap(({ source, name, writers }) =>
    writers.flatMap(({ rank, boxes }) =>
      placedBoxes({ boxes }).map(({ box, local }, k) => ({ source, name, rank, box, local, index: k + 1 }))
    )
  );
  const count = boxes.reduce((most, { index }) => Math.max(most, index), 1);
  const fileOf = (rank: number, index: number): string =>
    `${prefix}shard-${number(rank + 1)}-model-${number(index)}-of-${number(count)}.safetensors`;
  return { tensors, boxes: boxes.map(({ index, ...placed }) => ({ ...placed, file: fileOf(placed.rank, index) })) };
}

/** Writes the files of one rank. @param pieces the bytes of a box, as float32 */
export async function writeShardFiles<S>(
  sections: readonly Pick<FileGroup<S>, "boxes">[],
  directory: string,
  rank: number,
  pieces: (placed: PlacedBox<S>) => Iterable<Uint8Array>,
): Promise<Manifest["files"]> {
  const written = new Map<string, WrittenFile>();
  for (const section of sections) {
    const own = section.boxes.filter((placed) => placed.rank === rank);
    for (const [file, boxes] of Map.groupBy(own, (placed) => placed.file)) {
      const byName = new Map(boxes.map((placed) => [placed.name, placed]));
      const sharding = boxes.map(({ name, box }) => [name, { saved_offsets: box.offsets }] as const);
      const result = await writeSafetensors(
        `${directory}/${file}`,
        boxes.map(({ name, box }) => ({ name, shape: box.sizes, dtype: float32 })),
        { DCP_SHARDING_INFO: JSON.stringify(Object.fromEntries(sharding)), DCP_VERSION: "1.0", format: "pt" },
        ({ name }) => {
          const placed = byName.get(name);
          if (placed === undefined) throw new InternalError(`no box of '${name}' for ${file}`);
          return pieces(placed);
        },
      );
      written.set(file, result);
    }
  }
  return written;
}

/** The entries of the manifest for a section. */
export function savedTensors<S>(section: FileGroup<S> | undefined): Manifest["model"] {
  const shares = Map.groupBy(section?.boxes ?? [], ({ name }) => name);
  return new Map(
    section?.tensors.map(({ name, shape }) => [name, {
      shape,
      shares: (shares.get(name) ?? []).map(({ file, box }) => ({ file, box })),
    }]),
  );
}
