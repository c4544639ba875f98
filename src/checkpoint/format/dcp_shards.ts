/**
 * Weights as PyTorch's distributed checkpoint leaves them (`HuggingFaceStorageWriter(save_distributed=True)`): no index, but
 * files of each rank that say in their metadata which box of each tensor they hold.
 *
 * @module
 */
import { at } from "../../at.ts";
import { CheckpointError } from "../../errors.ts";
import { isJsonObject, kindOf, parseJsonObject } from "../../json.ts";
import { listDirectory } from "../../runtime/files.ts";
import { numelOf, type Shape } from "../../shape.ts";
import { type Box, fullBox } from "../../tensor/shard_layout.ts";
import { overlapIn } from "./boxes.ts";
import { openSafetensors, type SafetensorsFile } from "./safetensors.ts";

/** Key of a file's metadata under which the boxes are. */
const SHARDING_INFO = "DCP_SHARDING_INFO";

/** A box of a tensor, and the file that holds it under the tensor's name. */
export interface StoredPart {
  readonly file: SafetensorsFile;
  readonly box: Box;
}

/** A tensor of a directory. */
export interface StoredTensor {
  readonly name: string;
  /** The dtype as files spell it. */
  readonly code: string;
  /** Shape of the full tensor. */
  readonly shape: Shape;
  /** Together they are the full tensor, and no two share an element. */
  readonly parts: readonly StoredPart[];
}

/** A tensor that one file holds all of. */
export function storedUncut(file: SafetensorsFile, name: string): StoredTensor {
  const { code, shape } = file.get(name);
  return { name, code, shape, parts: [{ file, box: fullBox(shape) }] };
}

/**
 * Opens the shards of a directory, or none where there are none of PyTorch's. Headers are read, and compared with each other.
 *
 * @throws {CheckpointError} if a file is damaged, or parts of a tensor overlap, lack elements, or are of different dtypes
 */
export async function openDcpShards(
  directory: string,
): Promise<{ readonly files: readonly SafetensorsFile[]; readonly tensors: readonly StoredTensor[] } | undefined> {
  using opened = new DisposableStack();
  const files: SafetensorsFile[] = [];
  for (const name of listDirectory(directory).filter((name) => name.endsWith(".safetensors"))) {
    files.push(opened.use(await openSafetensors(`${directory}/${name}`)));
  }
  if (files.length === 0 || !files.every(({ metadata }) => metadata.has(SHARDING_INFO))) return undefined;
  const parts = Map.groupBy(files.flatMap(partsOf), ({ name }) => name);
  const tensors = [...parts].map(([name, list]) => joined(directory, name, list));
  opened.move();
  return { files, tensors };
}

/** The parts of tensors that a file's metadata describes. */
function partsOf(file: SafetensorsFile): (StoredPart & { readonly name: string; readonly code: string })[] {
  const refuse = (detail: string, name?: string): CheckpointError => new CheckpointError(file.path, detail, name);
  const text = file.metadata.get(SHARDING_INFO);
  if (text === undefined) throw refuse(`Expected ${SHARDING_INFO} in its metadata, as in the other files, got none`);
  const rules = { file: file.path, what: SHARDING_INFO, maxDepth: 4 };
  const info = parseJsonObject(new TextEncoder().encode(text), rules);
  return file.entries.map(({ name, code, shape }) => {
    const entry = info[name];
    const offsets = isJsonObject(entry) ? entry["saved_offsets"] : undefined;
    if (!isOffsets(offsets) || offsets.length !== shape.length) {
      throw refuse(`${SHARDING_INFO} must give ${shape.length} saved_offsets, got ${kindOf(offsets)}`, name);
    }
    return { name, code, file, box: { offsets, sizes: shape } };
  });
}

function isOffsets(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((offset) => Number.isSafeInteger(offset) && offset >= 0);
}

/** One tensor of its parts. Its shape is as far as they reach: nothing else tells. */
function joined(directory: string, name: string, parts: ReturnType<typeof partsOf>): StoredTensor {
  const refuse = (detail: string): CheckpointError => new CheckpointError(directory, detail, name);
  const first = at(parts, 0, "part");
  const ndim = first.box.sizes.length;
  for (const { code, box, file } of parts) {
    if (code === first.code && box.sizes.length === ndim) continue;
    throw refuse(
      `Expected parts of ${first.code} with ${ndim} dims, got ${code} with ${box.sizes.length} in '${file.path}'`,
    );
  }
  const shape = first.box.sizes.map((_, dim) => {
    return Math.max(...parts.map(({ box }) => at(box.offsets, dim, "offset") + at(box.sizes, dim, "size")));
  });
  const held = parts.filter(({ box }) => numelOf(box.sizes) > 0);
  const [one, two] = overlapIn(held.map(({ box, file }) => ({ ...box, path: file.path }))) ?? [];
  if (one !== undefined && two !== undefined) {
    throw refuse(`Parts must not overlap, but those of '${one.path}' and '${two.path}' do`);
  }
  const found = held.reduce((sum, { box }) => sum + numelOf(box.sizes), 0);
  if (found !== numelOf(shape)) {
    throw refuse(
      `Expected parts of all ${numelOf(shape)} elements of [${shape.join(", ")}], got ${found}: a shard is missing`,
    );
  }
  return { name, code: first.code, shape, parts: held.map(({ file, box }) => ({ file, box })) };
}
