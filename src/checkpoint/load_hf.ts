/**
 * Loading the weights of a Hugging Face directory, strictly: every tensor fits, or nothing is loaded and all that is
 * wrong is listed. Each rank reads the elements that it owns and no others.
 *
 * @module
 */
import { sameShape } from "../shape.ts";
import { FLOAT_CODES } from "./float_bytes.ts";
import { type HfWeights, openHfWeights } from "./hf_index.ts";
import { ALONE, type Ranks } from "./ranks.ts";
import { type CheckpointModel, type FoundTensor, heldPart, openModelForWriting, requireFit } from "./state_dict.ts";
import { readElements } from "./transfer.ts";

/** Buffers that older versions of transformers stored and that follow from the config. */
const DERIVED = /\.rotary_emb\.inv_freq$/;

/** Bytes compared at once where a tied tensor is stored twice. */
const PIECE = 1 << 20;

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
 * @param directory a directory with `model.safetensors`, or shards and their index
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
): Promise<HfLoadReport> {
  using opened = new DisposableStack();
  const { weights, ignored } = await ranks.together(`read headers of '${directory}'`, async () => {
    const weights = opened.use(await openHfWeights(directory));
    return { weights, ignored: await check(model, weights, ranks) };
  });
  const tensors = [...model.directoryTensors()];
  let bytesRead = 0;
  await ranks.together(`load weights of '${directory}'`, async () => {
    using _writing = openModelForWriting(model);
    for (const { name, part, box } of tensors) {
      bytesRead += await readElements(heldPart(name, part), box, () => weights.fileOf(name));
    }
  });
  return { tensors: tensors.length, bytesRead, ignored };
}

/** Checks names, shapes, dtypes and second copies; returns the names that need not be loaded. */
async function check(model: CheckpointModel, weights: HfWeights, ranks: Ranks): Promise<string[]> {
  const expected = new Map([...model.directoryTensors()].map(({ name, shape }) => [name, shape]));
  const found = new Map<string, FoundTensor>();
  const ignored: string[] = [];
  const problems: string[] = [];
  for (const entry of weights.entries) {
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
  const [first, second] = [weights.fileOf(name), weights.fileOf(other)];
  const [a, b] = [first.get(name), second.get(other)];
  if (a.code !== b.code || !sameShape(a.shape, b.shape)) return false;
  const share = Math.ceil(a.byteLength / ranks.size);
  const end = Math.min(a.byteLength, (ranks.rank + 1) * share);
  const [left, right] = [new Uint8Array(PIECE), new Uint8Array(PIECE)];
  for (let at = ranks.rank * share; at < end; at += PIECE) {
    const count = Math.min(PIECE, end - at);
    await first.readInto(name, at, at + count, left.subarray(0, count));
    await second.readInto(other, at, at + count, right.subarray(0, count));
    for (let i = 0; i < count; i++) if (left[i] !== right[i]) return false;
  }
  return true;
}
