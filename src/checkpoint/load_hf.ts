/**
 * Loading the weights of a Hugging Face directory, strictly: every tensor fits, or nothing is loaded and all that is
 * wrong is listed. Each rank reads the elements that it owns and no others, or rank 0 reads all and sends them.
 *
 * @module
 */
import { at } from "../at.ts";
import { CheckpointError } from "../errors.ts";
import { numelOf, sameShape } from "../shape.ts";
import { type Box, sharedRuns } from "../tensor/shard_layout.ts";
import { FLOAT_CODES, floatWidth } from "./float_bytes.ts";
import { type HfWeights, openHfWeights } from "./hf_index.ts";
import { ALONE, type Ranks } from "./ranks.ts";
import type { SafetensorsFile } from "./safetensors.ts";
import {
  type CheckpointModel,
  type DirectoryTensor,
  type FoundTensor,
  heldPart,
  openModelForWriting,
  requireFit,
} from "./state_dict.ts";
import { readElements, readFloats } from "./transfer.ts";
import { scatterWhole, type WholePart } from "./whole.ts";

/** Buffers that older versions of transformers stored and that follow from the config. */
const DERIVED = /\.rotary_emb\.inv_freq$/;

/** Bytes compared at once where a tied tensor is stored twice. */
const PIECE = 1 << 20;

/** Options of {@link loadHfWeights}. */
export interface LoadHfOptions {
  /** Rank 0 alone reads files, and sends the others what they hold, piece by piece. @default false */
  readonly broadcastFromRank0?: boolean;
}

/** What was loaded. */
export interface HfLoadReport {
  /** Tensors loaded. */
  readonly tensors: number;
  /** Bytes of weights that this rank read. */
  readonly bytesRead: number;
  /** Names that are in the files and were not needed: second copies of tied tensors, and buffers that follow from the config. */
  readonly ignored: readonly string[];
}

/**
 * Loads weights into a model, sharded or whole, on all ranks. F16, BF16 and F64 become float32 while they are read.
 *
 * A tied tensor may be stored a second time under its other name if both are equal, bit for bit.
 *
 * @param model built from the directory's `config.json`, with or without memory
 * @param directory a directory with `model.safetensors`, with shards and their index, or with the shards that PyTorch's
 *   `HuggingFaceStorageWriter(save_distributed=True)` wrote
 * @param ranks the group of the ranks that load; left out by a process on its own
 * @throws {CheckpointError} listing all names that are missing, unexpected, mis-shaped or of a wrong dtype; or if a file is
 *   damaged
 * @throws {FileError} if a file cannot be read; the other ranks get a {@link CollectiveError}
 * @example
 * ```ts ignore
 * const model = buildModel(device, config);
 * for (const unit of model.layers) fullyShard(unit, { mesh: group });
 * fullyShard(model, { mesh: group });
 * await loadHfWeights(model, "Llama-3.2-1B", group);
 * ```
 */
export async function loadHfWeights(
  model: CheckpointModel,
  directory: string,
  ranks: Ranks = ALONE,
  { broadcastFromRank0 = false }: LoadHfOptions = {},
): Promise<HfLoadReport> {
  using opened = new DisposableStack();
  const own = await ranks.together(`read headers of '${directory}'`, async () => {
    if (broadcastFromRank0 && ranks.rank > 0) return undefined;
    const weights = opened.use(await openHfWeights(directory));
    return { weights, ignored: await check(model, weights, broadcastFromRank0 ? ALONE : ranks) };
  });
  const tensors = [...model.directoryTensors()];
  const text = own === undefined
    ? ""
    : JSON.stringify({ ignored: own.ignored, boxes: storedBoxes(tensors, own.weights) });
  const [found = text] = broadcastFromRank0 ? ranks.exchangeText(text, "what is stored") : [text];
  const { ignored, boxes }: StoredNames = JSON.parse(found);
  const parts = tensors.flatMap((tensor, i) =>
    at(boxes, i, "boxes of tensor").map((stored, index): HfPart => ({
      name: tensor.name,
      held: heldPart(tensor.name, tensor.part),
      box: placedIn(tensor, stored, directory),
      index,
    }))
  );
  let bytesRead = 0;
  const label = `load weights of '${directory}'`;
  using _writing = openModelForWriting(model);
  if (broadcastFromRank0) {
    for (const { part: { name, index }, start, values } of scatterWhole(parts, { group: ranks })) {
      await ranks.together(label, () => {
        if (own !== undefined) bytesRead += readFloats(fileOf(own.weights, name, index), name, start, values);
      });
    }
  } else if (own !== undefined) {
    await ranks.together(label, async () => {
      for (const { name, held, box, index } of parts) {
        bytesRead += await readElements(held, box, () => fileOf(own.weights, name, index));
      }
    });
  }
  return { tensors: tensors.length, bytesRead, ignored };
}

/** What every rank must know of a directory. */
interface StoredNames {
  readonly ignored: readonly string[];
  /** The boxes in which each tensor is stored. */
  readonly boxes: readonly (readonly Box[])[];
}

/** Elements of a parameter or buffer that lie in one file. */
interface HfPart extends WholePart {
  readonly name: string;
  /** Which of the parts of the tensor of that name. */
  readonly index: number;
}

function storedBoxes(tensors: readonly DirectoryTensor[], weights: HfWeights): StoredNames["boxes"] {
  return tensors.map(({ name }) => weights.get(name).parts.map(({ box }) => box));
}

function fileOf(weights: HfWeights, name: string, index: number): SafetensorsFile {
  return at(weights.get(name).parts, index, `part of '${name}'`).file;
}

/** The box of a parameter or buffer that a stored box of a directory's tensor is. */
function placedIn({ name, shape, box }: DirectoryTensor, stored: Box, directory: string): Box {
  if (numelOf(stored.sizes) === numelOf(shape)) return box;
  if (!sameShape(box.sizes, shape)) {
    const detail = `Expected it whole, as its part of [${box.sizes.join(", ")}] has another shape, got it in parts`;
    throw new CheckpointError(directory, detail, name);
  }
  return { offsets: box.offsets.map((offset, dim) => offset + at(stored.offsets, dim, "offset")), sizes: stored.sizes };
}

/** Checks names, shapes, dtypes and second copies; returns the names that need not be loaded. */
async function check(model: CheckpointModel, weights: HfWeights, ranks: Ranks): Promise<string[]> {
  const expected = new Map([...model.directoryTensors()].map(({ name, shape }) => [name, shape]));
  const found = new Map<string, FoundTensor>();
  const ignored: string[] = [];
  const problems: string[] = [];
  for (const entry of weights.tensors.values()) {
    const original = model.tiedNames.get(entry.name);
    if (original !== undefined && !expected.has(entry.name)) {
      ignored.push(entry.name);
      if (weights.has(original) && !await equal(weights, entry.name, original, ranks)) {
        problems.push(
          `tied: '${entry.name}' and '${original}' should be one tensor, but differ; ` +
            `set "tie_word_embeddings" to false in config.json to keep both`,
        );
      }
    } else if (DERIVED.test(entry.name) && !expected.has(entry.name)) ignored.push(entry.name);
    else found.set(entry.name, entry);
  }
  const remedies = new Map([[
    "lm_head.weight",
    `if it is shared with the input embedding, set "tie_word_embeddings" to true in config.json`,
  ]]);
  requireFit(expected, found, { where: weights.directory, what: "model", codes: FLOAT_CODES, problems, remedies });
  return ignored;
}

/** Whether two tensors have equal bytes; each rank compares its part of them. */
async function equal(weights: HfWeights, name: string, other: string, ranks: Ranks): Promise<boolean> {
  const [a, b] = [weights.get(name), weights.get(other)];
  if (a.code !== b.code || !sameShape(a.shape, b.shape)) return false;
  const pairs = a.parts.flatMap((one) => b.parts.map((two) => [one, two] as const));
  const width = floatWidth(a.code);
  for (const [one, two] of pairs) {
    for (const { inFirst, inSecond, length } of sharedRuns(one.box, two.box)) {
      if (!await equalRuns([one.file, name, inFirst], [two.file, other, inSecond], length, width, ranks)) return false;
    }
  }
  return true;
}

/** A run of elements of a tensor in a file. */
type FileRun = readonly [file: SafetensorsFile, name: string, from: number];

async function equalRuns(
  [first, name, from]: FileRun,
  [second, other, otherFrom]: FileRun,
  length: number,
  width: number,
  { rank, size }: Ranks,
): Promise<boolean> {
  const byteLength = length * width;
  const share = Math.ceil(byteLength / size);
  const end = Math.min(byteLength, (rank + 1) * share);
  const [left, right] = [new Uint8Array(PIECE), new Uint8Array(PIECE)];
  for (let start = rank * share; start < end; start += PIECE) {
    const count = Math.min(PIECE, end - start);
    const [a, b] = [from * width + start, otherFrom * width + start];
    await first.readInto(name, a, a + count, left.subarray(0, count));
    await second.readInto(other, b, b + count, right.subarray(0, count));
    for (let i = 0; i < count; i++) if (left[i] !== right[i]) return false;
  }
  return true;
}
