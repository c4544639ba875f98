/**
 * Weights of a Hugging Face directory: one `model.safetensors`, or shards named by `model.safetensors.index.json`, as
 * one table of tensors; and the plan of such files for writing. Names are not interpreted.
 *
 * Invariant: every tensor of an opened directory is complete: in the one file that the index names, or in boxes of
 * several.
 *
 * @module
 */
import { ArgumentError, CheckpointError } from "../../errors.ts";
import { isJsonObject, kindOf, parseJsonObject } from "../../json.ts";
import { pathKind, readBytes } from "../../runtime/files.ts";
import { countOf } from "../../words.ts";
import { refuseAdapter } from "./adapters.ts";
import { openDcpShards, type StoredTensor, storedUncut } from "./dcp_shards.ts";
import { otherCheckpoint } from "./other_programs.ts";
import { openSafetensors, type SafetensorsFile } from "./safetensors.ts";
import { type SafetensorsSpec, storedAs } from "./safetensors_header.ts";

/** The file of unsharded weights. */
export const SINGLE_FILE = "model.safetensors";
/** The file that says which shard has which tensor. */
export const INDEX_FILE = "model.safetensors.index.json";

/** The weights of a directory, open for reading. Made by {@link openHfWeights}. */
export class HfWeights implements Disposable {
  readonly directory: string;
  /** The files, sorted by name. */
  readonly files: readonly SafetensorsFile[];
  /** Names of all files that were read: files of tensors, and the index where there is one. */
  readonly fileNames: readonly string[];
  /** All tensors by name, file by file in the order of their bytes. */
  readonly tensors: ReadonlyMap<string, StoredTensor>;

  constructor(
    directory: string,
    files: readonly SafetensorsFile[],
    tensors: readonly StoredTensor[] = tensorsIn(files),
    others: readonly string[] = [],
  ) {
    this.directory = directory;
    this.files = files;
    this.fileNames = [...files.map(({ path }) => path.slice(path.lastIndexOf("/") + 1)), ...others];
    this.tensors = new Map(tensors.map((tensor) => [tensor.name, tensor]));
  }

  /** True if there is a tensor of that name. */
  has(name: string): boolean {
    return this.tensors.has(name);
  }

  /** A tensor and its files. @throws {CheckpointError} if there is none of that name */
  get(name: string): StoredTensor {
    const tensor = this.tensors.get(name);
    if (tensor === undefined) throw new CheckpointError(this.directory, "There is no tensor of that name", name);
    return tensor;
  }

  [Symbol.dispose](): void {
    for (const file of this.files) file.close();
  }
}

function tensorsIn(files: readonly SafetensorsFile[]): StoredTensor[] {
  return files.flatMap((file) => file.names.map((name) => storedUncut(file, name)));
}

/**
 * Opens the weights of a directory, reading and checking headers only. Like `transformers`, it takes `model.safetensors`
 * if there is one, else the shards of the index, else the files that PyTorch's distributed checkpoint wrote.
 *
 * @throws {CheckpointError} if there are no weights, a file is damaged, or index and files do not agree (with all names)
 */
export async function openHfWeights(directory: string): Promise<HfWeights> {
  if (pathKind(`${directory}/${SINGLE_FILE}`) !== "none") {
    return new HfWeights(directory, [await openSafetensors(`${directory}/${SINGLE_FILE}`)]);
  }
  const indexFile = `${directory}/${INDEX_FILE}`;
  if (pathKind(indexFile) === "none") {
    if (pathKind(directory) !== "directory") {
      throw new CheckpointError(directory, "Expected a directory with weights, got none");
    }
    refuseAdapter(directory);
    const shards = await openDcpShards(directory);
    if (shards !== undefined) return new HfWeights(directory, shards.files, shards.tensors);
    const other = otherCheckpoint(directory);
    const hint = other === undefined ? "" : ` but ${other.what}: write a Hugging Face folder of it ${other.convert}`;
    throw new CheckpointError(directory, `Expected ${SINGLE_FILE} or ${INDEX_FILE}, got neither${hint}`);
  }
  const weightMap = await readWeightMap(indexFile);
  const names = [...new Set(weightMap.values())].sort();
  const absent = names.filter((name) => pathKind(`${directory}/${name}`) !== "file");
  if (absent.length > 0) {
    const count = `${absent.length} of the ${countOf(names.length, "file")}`;
    throw new CheckpointError(directory, `${count} that ${INDEX_FILE} names are missing: ${absent.join(", ")}`);
  }
  using opened = new DisposableStack();
  const files = new Map<string, SafetensorsFile>();
  for (const name of names) files.set(name, opened.use(await openSafetensors(`${directory}/${name}`)));
  compare(directory, weightMap, files);
  opened.move();
  const list = [...files.values()];
  return new HfWeights(directory, list, tensorsIn(list), [INDEX_FILE]);
}

/** Files to be written for a model. */
export interface HfShardPlan {
  /** The files: one `model.safetensors`, or `model-00001-of-0000N.safetensors` and so on; names without directory. */
  readonly shards: readonly { readonly file: string; readonly specs: readonly SafetensorsSpec[] }[];
  /** Text of the index, to be written last; `undefined` for a single file. */
  readonly index: string | undefined;
  /** Bytes of all tensors. */
  readonly totalBytes: number;
}

/**
 * Divides a model over files: tensors in the order given, a new file when the next would exceed the limit.
 *
 * @param maxShardBytes bytes of tensors in a file; a larger tensor has a file of its own
 * @throws {ArgumentError} if the limit is not positive or a tensor cannot be stored
 */
export function planHfShards(specs: readonly SafetensorsSpec[], maxShardBytes: number): HfShardPlan {
  if (!(maxShardBytes > 0)) throw new ArgumentError(`maxShardBytes must be positive, got ${maxShardBytes}`);
  const groups: SafetensorsSpec[][] = [[]];
  let inGroup = 0;
  let totalBytes = 0;
  for (const spec of specs) {
    const { byteLength } = storedAs(spec);
    if (inGroup + byteLength > maxShardBytes && groups.at(-1)?.length !== 0) {
      groups.push([]);
      inGroup = 0;
    }
    groups.at(-1)?.push(spec);
    inGroup += byteLength;
    totalBytes += byteLength;
  }
  if (groups.length === 1) return { shards: [{ file: SINGLE_FILE, specs }], index: undefined, totalBytes };
  const number = (value: number): string => String(value).padStart(5, "0");
  const shards = groups.map((group, i) => ({
    file: `model-${number(i + 1)}-of-${number(groups.length)}.safetensors`,
    specs: group,
  }));
  const pairs = shards.flatMap(({ file, specs }) => specs.map(({ name }) => [name, file] as const));
  pairs.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  // Written by hand: an object would move names that look like numbers to its front.
  const lines = pairs.map(([name, file]) => `    ${JSON.stringify(name)}: ${JSON.stringify(file)}`);
  const index = `{\n  "metadata": {\n    "total_size": ${totalBytes}\n  },\n  "weight_map": {\n${
    lines.join(",\n")
  }\n  }\n}\n`;
  return { shards, index, totalBytes };
}

/**
 * Reads an index: the shard of each tensor, a file of the same directory.
 *
 * @throws {CheckpointError} if it says something else
 */
export async function readWeightMap(file: string): Promise<ReadonlyMap<string, string>> {
  const json = parseJsonObject(await readBytes(file), { file, what: "index", maxDepth: 8 });
  const map = json["weight_map"];
  if (!isJsonObject(map)) throw new CheckpointError(file, `weight_map must be an object, got ${kindOf(map)}`);
  const pairs = new Map<string, string>();
  for (const [name, shard] of Object.entries(map)) {
    if (typeof shard !== "string") {
      throw new CheckpointError(file, `weight_map must name a file, got ${kindOf(shard)}`, name);
    }
    // A name that leaves the directory would read, or later overwrite, files that are not the model's.
    if (!/^[^/\\\0]+\.safetensors$/.test(shard)) {
      throw new CheckpointError(
        file,
        `weight_map must name a .safetensors file of the same directory, got ${JSON.stringify(shard)}`,
        name,
      );
    }
    pairs.set(name, shard);
  }
  if (pairs.size === 0) throw new CheckpointError(file, "weight_map must name at least one tensor, got none");
  return pairs;
}

function compare(
  directory: string,
  weightMap: ReadonlyMap<string, string>,
  files: ReadonlyMap<string, SafetensorsFile>,
): void {
  const absent = [...weightMap].filter(([name, file]) => files.get(file)?.has(name) !== true)
    .map(([name, file]) => `'${name}' (${file})`);
  const extra = [...files].flatMap(([file, { names }]) =>
    names.filter((name) => weightMap.get(name) !== file).map((name) => `'${name}' (${file})`)
  );
  if (absent.length + extra.length === 0) return;
  const parts: string[] = [];
  if (absent.length > 0) parts.push(`${absent.length} missing from the files it names: ${absent.join(", ")}`);
  if (extra.length > 0) parts.push(`${extra.length} in files but not in it: ${extra.join(", ")}`);
  throw new CheckpointError(directory, `${INDEX_FILE} and its files do not agree: ${parts.join("; ")}`);
}
