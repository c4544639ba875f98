/**
 * Loading the weights of a Hugging Face directory, strictly: every tensor fits, or nothing is loaded and all that is
 * wrong is listed. Each rank reads the elements that it owns and no others, or rank 0 reads all and sends them.
 *
 * @module
 */
import { requireKnownKeys } from "../../config/known_keys.ts";
import { at } from "../../at.ts";
import { CheckpointError } from "../../errors.ts";
import { numelOf, sameShape } from "../../shape.ts";
import { type Box, sharedSlices } from "../../tensor/shard_layout.ts";
import { refuseAdapter } from "../format/adapters.ts";
import type { StoredTensor } from "../format/dcp_shards.ts";
import { FLOAT_CODES, floatWidth } from "../format/float_bytes.ts";
import { type HfWeights, openHfWeights } from "../format/hf_index.ts";
import { ALONE, type Ranks, requireRanks } from "../format/ranks.ts";
import type { SafetensorsFile } from "../format/safetensors.ts";
import { type FullTensorPart, scatterFull } from "../state_dict/full_tensor.ts";
import {
  type DirectoryTensor,
  heldPart,
  openModelForWriting,
  requireFit,
  type SavableModel,
} from "../state_dict/state_dict.ts";
import { readElements, readFloats } from "../state_dict/transfer.ts";
import { directoryTensorsOf, nameTensors } from "./names.ts";

/** Bytes compared at once where a tied tensor is stored twice. */
const PIECE = 1 << 20;

/** Files of weights that are opened otherwise than a model's. */
export interface WeightsSource {
  /** The owner of the tensors, in errors. */
  readonly what: "model" | "adapter";
  /** Opens the files of the directory. */
  readonly open: () => Promise<HfWeights>;
}

/** Options of {@link loadHfWeights}. */
export interface LoadHfOptions {
  /** Rank 0 alone reads files, and sends the others what they hold, piece by piece. @default false */
  readonly broadcastFromRank0?: boolean;
}

/** The result of a load. */
export interface HfLoadReport {
  /** Tensors loaded. */
  readonly tensors: number;
  /** Bytes of weights that this rank read. */
  readonly bytesRead: number;
  /**
   * Names that are in the files and were not needed: second copies of tied tensors, buffers that follow from the config, and what
   * transformers leaves alone in the family's files, such as the layers of `mtp.`.
   */
  readonly ignored: readonly string[];
  /** Names of the files that were read, the index among them; none on ranks that read nothing. */
  readonly files: readonly string[];
}

/**
 * Loads weights into a model, sharded or unsharded, on all ranks. F16, BF16 and F64 become float32 while they are read.
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
  model: SavableModel,
  directory: string,
  ranks: Ranks = ALONE,
  options: LoadHfOptions = {},
): Promise<HfLoadReport> {
  requireKnownKeys("load weights", options, { broadcastFromRank0: true });
  requireRanks("load weights", ranks);
  const open = async (): Promise<HfWeights> => {
    refuseAdapter(directory);
    return await openHfWeights(directory);
  };
  return await loadWeights(model, directory, ranks, options, { what: "model", open });
}

/**
 * Loads weights from files that are opened otherwise.
 *
 * @throws {CheckpointError} {@link FileError} as {@link loadHfWeights}
 */
export async function loadWeights(
  model: SavableModel,
  directory: string,
  ranks: Ranks,
  { broadcastFromRank0 = false }: LoadHfOptions,
  { what, open }: WeightsSource,
): Promise<HfLoadReport> {
  using opened = new DisposableStack();
  const own = await ranks.together(`read headers of '${directory}'`, async () => {
    if (broadcastFromRank0 && ranks.rank > 0) return undefined;
    const weights = opened.use(await open());
    return await checkWeights(model, weights, broadcastFromRank0 ? ALONE : ranks, what);
  });
  const texts = broadcastFromRank0 ? ranks.exchangeText(own?.text ?? "", "what is stored") : [own?.text];
  const found = at(texts, 0, "text of rank") ?? "";
  const { ignored, undivided, boxes }: StoredNames = JSON.parse(found);
  const tensors = directoryTensorsOf(model, undivided);
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
  using writing = openModelForWriting(model);
  if (broadcastFromRank0) {
    for (const { part: { name, index }, start, values } of scatterFull(parts, { group: ranks })) {
      await ranks.together(label, () => {
        if (own === undefined) return;
        const stored = own.stored(name);
        bytesRead += readFloats(fileOf(stored, index), stored.name, start, values);
      });
    }
  } else if (own !== undefined) {
    await ranks.together(label, async () => {
      for (const { name, held, box, index } of parts) {
        const stored = own.stored(name);
        bytesRead += await readElements({ ...held, name: stored.name }, box, () => fileOf(stored, index));
      }
    });
  }
  writing.complete();
  return { tensors: tensors.length, bytesRead, ignored, files: own?.files ?? [] };
}

/** Facts about a directory's tensors that every rank must know. */
interface StoredNames {
  readonly ignored: readonly string[];
  /** FQNs of parameters that are stored as one tensor though the model's own files have parts of them. */
  readonly undivided: readonly string[];
  /** The boxes in which each tensor is stored. */
  readonly boxes: readonly (readonly Box[])[];
}

/** Elements of a parameter or buffer that lie in one file. */
interface HfPart extends FullTensorPart {
  readonly name: string;
  /** The place of the part among the parts of that tensor. */
  readonly index: number;
}

/** The tensors of a directory as a rank that reads knows them. */
interface Checked {
  /** The tensors that the directory has of the model. */
  readonly tensors: readonly DirectoryTensor[];
  /** The stored tensor that a model's tensor is. */
  readonly stored: (name: string) => StoredTensor;
  /** A {@link StoredNames}, as JSON. */
  readonly text: string;
  readonly files: readonly string[];
}

function fileOf({ name, parts }: StoredTensor, index: number): SafetensorsFile {
  return at(parts, index, `part of '${name}'`).file;
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

/**
 * Checks names, shapes, dtypes and second copies.
 *
 * @throws {CheckpointError} listing all that does not fit
 */
export async function checkWeights(
  model: SavableModel,
  weights: HfWeights,
  ranks: Ranks,
  what: WeightsSource["what"],
): Promise<Checked> {
  const { found, copies, ignored, undivided } = nameTensors(model, weights.tensors);
  const tensors = directoryTensorsOf(model, undivided);
  const problems: string[] = [];
  for (const { copy, original } of copies) {
    const other = found.get(original);
    if (other === undefined || await equal(copy, other, ranks)) continue;
    problems.push(
      `tied: '${copy.name}' and '${other.name}' should be one tensor, but differ; ` +
        `set "tie_word_embeddings" to false in config.json to keep both`,
    );
  }
  const remedies = new Map([[
    "lm_head.weight",
    `if it is shared with the input embedding, set "tie_word_embeddings" to true in config.json`,
  ]]);
  const expected = new Map(tensors.map(({ name, shape }) => [name, shape]));
  requireFit(expected, found, { where: weights.directory, what, codes: FLOAT_CODES, problems, remedies });
  const stored = (name: string): StoredTensor => found.get(name) ?? weights.get(name);
  const boxes = tensors.map(({ name }) => stored(name).parts.map(({ box }) => box));
  const names: StoredNames = { ignored: [...copies.map(({ copy }) => copy.name), ...ignored], undivided, boxes };
  return { tensors, stored, text: JSON.stringify(names), files: weights.fileNames };
}

/** True if two tensors have equal bytes; each rank compares its part of them. */
async function equal(a: StoredTensor, b: StoredTensor, ranks: Ranks): Promise<boolean> {
  if (a.code !== b.code || !sameShape(a.shape, b.shape)) return false;
  const pairs = a.parts.flatMap((one) => b.parts.map((two) => [one, two] as const));
  const width = floatWidth(a.code);
  for (const [one, two] of pairs) {
    for (const { inFirst, inSecond, length } of sharedSlices(one.box, two.box)) {
      if (!await equalSlices([one.file, a.name, inFirst], [two.file, b.name, inSecond], length, width, ranks)) {
        return false;
      }
    }
  }
  return true;
}

/** A slice of elements of a tensor in a file. */
type FileSlice = readonly [file: SafetensorsFile, name: string, from: number];

async function equalSlices(
  [first, name, from]: FileSlice,
  [second, other, otherFrom]: FileSlice,
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
