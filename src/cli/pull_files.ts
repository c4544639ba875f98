/**
 * Copies a model or a data set from a server into Hugging Face's cache: chooses its files and their places there, and checks that they are
 * complete.
 *
 * A file is written aside, gone on with after an interruption, compared with its size and hash, and renamed; a revision is found in the
 * cache when all its files are there. Pulls of one file at once write it together: its bytes are the same for all of them, and each
 * byte has its place.
 *
 * Permissions on Deno: `--allow-read --allow-write`, without which it makes no links, `--allow-sys=statfs`, and the permissions of
 * `hub.ts`.
 *
 * @module
 */
import { companionNames, isTokenizerFile, MAX_COMPANION_BYTES } from "../checkpoint/format/companions.ts";
import { INDEX_FILE, readWeightMap, SINGLE_FILE } from "../checkpoint/format/hf_index.ts";
import {
  findSnapshot,
  formatHubName,
  hubFolder,
  type HubName,
  isCommit,
} from "../checkpoint/hugging_face/hub_cache.ts";
import { CONFIG_FILE } from "../checkpoint/sharded/manifest.ts";
import { CheckpointError, FileError } from "../errors.ts";
import { byteHash } from "../runtime/checksum.ts";
import { sleep } from "../runtime/clock.ts";
import {
  fileByteLength,
  makeDirectory,
  openReadable,
  openWritable,
  pathKind,
  removePath,
  renamePath,
  replaceFile,
  replaceLink,
  spaceAt,
} from "../runtime/files.ts";
import { formatBytes } from "../words.ts";
import { type HubFile, type HubRevision, type HubServer, InterruptedError } from "./hub.ts";

/** Most files beside weights that are asked for. */
const MOST_SMALL_FILES = 400;

/** Times in a row that an answer may end without a byte more. */
const MOST_FAILURES = 5;

/** Options of a pull. */
export interface PullOptions {
  readonly server: HubServer;
  /** The folder of the cache. */
  readonly cache: string;
  /** Called with each file that came. */
  readonly note: (text: string) => void;
}

/**
 * Downloads what is not there yet; gives the snapshot.
 *
 * @throws {FileError} if something cannot be had or written
 * @throws {CheckpointError} if what came is not what the server said it is
 */
export async function pullModel(model: HubName, options: PullOptions): Promise<string> {
  const { server, cache, note } = options;
  const held = await server.revision(model);
  const folder = hubFolder(cache, model);
  const snapshot = `${folder}/snapshots/${held.commit}`;
  makeDirectory(`${folder}/blobs`);
  makeDirectory(snapshot);
  const get = async (file: string, mostBytes: number = Infinity): Promise<void> => {
    const facts = await server.look(model, held.commit, file);
    if (facts.byteLength > mostBytes) return note(`${file}: left out, as it has ${formatBytes(facts.byteLength)}`);
    const blob = `${folder}/blobs/${facts.etag}`;
    const isThere = lengthOf(blob) === facts.byteLength;
    if (!isThere) await download(model, held.commit, file, facts, blob, options);
    if (pathKind(`${snapshot}/${file}`) !== "file" || !isThere) {
      const above = file.split("/").slice(0, -1);
      if (above.length > 0) makeDirectory(`${snapshot}/${above.join("/")}`);
      replaceLink(`${snapshot}/${file}`, `${"../".repeat(2 + above.length)}blobs/${facts.etag}`);
    }
    note(`${file}: ${formatBytes(facts.byteLength)}${isThere ? ", was there" : ""}`);
  };
  if (model.repoType === "dataset") {
    for (const file of dataFiles(model, held)) await get(file);
  } else await getModel(model, held, snapshot, options, get);
  if (!isCommit(model.revision)) {
    const ref = `${folder}/refs/${model.revision}`;
    makeDirectory(ref.slice(0, ref.lastIndexOf("/")));
    replaceFile(ref, held.commit);
  }
  const found = findSnapshot(model, cache);
  if (found === snapshot) return snapshot;
  throw new FileError(formatHubName(model), "pull", `it has no config.json, so that nothing tells what it is`);
}

/** Gets one file into the snapshot. @param mostBytes of a file; what has more is left out */
type Get = (file: string, mostBytes?: number) => Promise<void>;

/** Gets the files of a model. */
async function getModel(
  model: HubName,
  held: HubRevision,
  snapshot: string,
  { note }: PullOptions,
  get: Get,
): Promise<void> {
  if (held.files.includes(CONFIG_FILE)) await get(CONFIG_FILE);
  const small = companionNames(held.files);
  if (small.length > MOST_SMALL_FILES) {
    note(`left out ${small.length - MOST_SMALL_FILES} of ${small.length} small files`);
  }
  for (const file of small.slice(0, MOST_SMALL_FILES)) {
    await get(file, isTokenizerFile(file) ? Infinity : MAX_COMPANION_BYTES);
  }
  for await (const file of weightFiles(model, held, snapshot, get)) await get(file);
}

/** Files of data: rows and texts, as they are or packed. */
const DATA_FILE = /\.(?:parquet|pq|(?:jsonl|ndjson|json|csv|txt|text|md)(?:\.(?:gz|zst|zstd))?)$/i;

/** The files of a data set that a training can read. */
function dataFiles(dataset: HubName, { files }: HubRevision): readonly string[] {
  // No path may leave the folder, nor hide in it.
  const safe = files.filter((file) => file.split("/").every((part) => /^[^.]/.test(part)));
  // The card describes the data, and is none of it: a training on the folder would take it for a text.
  const found = safe.filter((file) => DATA_FILE.test(file) && file !== "README.md");
  if (found.length > 0) return found;
  const got = files.length === 0 ? "no files" : files.slice(0, 3).join(", ");
  const expected = "expected files of rows or text (.parquet, .jsonl, .json, .csv, .txt)";
  throw new FileError(formatHubName(dataset), "pull", `${expected}, got ${got}`);
}

/** Files of weights, but the index, which is got to know them. */
async function* weightFiles(
  model: HubName,
  { files }: HubRevision,
  snapshot: string,
  get: Get,
): AsyncGenerator<string> {
  if (files.includes(SINGLE_FILE)) return yield SINGLE_FILE;
  const refuse = (detail: string): FileError => new FileError(formatHubName(model), "pull", detail);
  if (!files.includes(INDEX_FILE)) {
    const others = files.filter((file) => /\.(bin|pt|pth|gguf|h5|msgpack)$/.test(file));
    const got = others.length === 0 ? "none" : others.slice(0, 3).join(", ");
    throw refuse(`expected weights as ${SINGLE_FILE} or ${INDEX_FILE}, got ${got}`);
  }
  await get(INDEX_FILE);
  const weightMap = await readWeightMap(`${snapshot}/${INDEX_FILE}`);
  for (const shard of new Set(weightMap.values())) {
    if (!files.includes(shard)) throw refuse(`${INDEX_FILE} names '${shard}', which is not there`);
    yield shard;
  }
}

/** Writes a blob: what an earlier try left, or another pull has of it by now, is gone on with. */
async function download(
  model: HubName,
  commit: string,
  file: string,
  facts: HubFile,
  blob: string,
  { server, note }: PullOptions,
): Promise<void> {
  const partial = `${blob}.fullyshard.incomplete`;
  const byAnother = (): boolean => lengthOf(blob) === facts.byteLength;
  const begun = lengthOf(partial);
  requireRoom(blob, file, begun === undefined ? facts.byteLength : facts.byteLength - begun);
  {
    using writer = openWritable(partial, "resume");
    let end = writer.byteLength;
    if (end > 0) note(`${file}: going on after ${formatBytes(end)}`);
    for (let failures = 0; end < facts.byteLength;) {
      const before = end;
      try {
        // A server that gives no parts begins at 0 again.
        for await (const { at, bytes } of server.read(model, commit, file, before)) {
          if (byAnother()) return removePath(partial);
          if (at > end) throw new InterruptedError(`at byte ${at} instead of ${end}`);
          writer.write(bytes, at);
          end = at + bytes.length;
          if (end > facts.byteLength) break;
        }
        if (end < facts.byteLength) throw new InterruptedError(`after ${end} bytes of '${file}'`);
      } catch (error) {
        if (!(error instanceof InterruptedError)) throw error;
        failures = end > before ? 0 : failures + 1;
        if (failures >= MOST_FAILURES) {
          const detail = `the answer ends ${error.message} again and again; pull it again to go on from there`;
          throw new FileError(formatHubName(model), "pull", detail, undefined, { cause: error });
        }
        await sleep(failures === 0 ? 0 : 200 * 2 ** failures);
      }
    }
    writer.sync();
  }
  try {
    const problem = mismatch(partial, facts);
    if (problem !== undefined) {
      removePath(partial);
      throw new CheckpointError(formatHubName(model), `What came as '${file}' is damaged: ${problem}; pull it again`);
    }
    renamePath(partial, blob);
  } catch (error) {
    if (!(isAbsent(error) && byAnother())) throw error;
  }
}

/** Size of a file that another pull may rename at any time; undefined where there is none. */
function lengthOf(path: string): number | undefined {
  try {
    return fileByteLength(path);
  } catch (error) {
    if (isAbsent(error)) return undefined;
    throw error;
  }
}

function isAbsent(error: unknown): boolean {
  return error instanceof FileError && error.code === "ENOENT";
}

/** Describes the difference between a file and the facts that the server gave of it. */
function mismatch(path: string, { etag, byteLength }: HubFile): string | undefined {
  using file = openReadable(path);
  if (file.byteLength !== byteLength) return `expected ${byteLength} bytes, got ${file.byteLength}`;
  const algorithm = { 64: "sha256", 40: "sha1" } as const;
  const kind = /^[0-9a-f]+$/.test(etag)
    ? Object.entries(algorithm).find(([length]) => etag.length === Number(length))
    : undefined;
  if (kind === undefined) return undefined;
  const hash = byteHash(kind[1]);
  // Git hashes what it keeps with a line before it.
  if (kind[1] === "sha1") hash.update(`blob ${byteLength}\0`);
  for (const piece of file.pieces(0, byteLength)) hash.update(piece);
  const found = hash.finish();
  return found === etag ? undefined : `expected ${kind[1]} ${etag}, got ${found}`;
}

/** Refuses a file that the disk has no room for, before it comes. */
function requireRoom(blob: string, file: string, byteLength: number): void {
  const { freeBytes } = spaceAt(blob.slice(0, blob.lastIndexOf("/")));
  if (byteLength <= freeBytes) return;
  const detail = `'${file}' needs ${formatBytes(byteLength)} more, ${formatBytes(freeBytes)} are free; ` +
    "free some, or let HF_HUB_CACHE name a folder on another disk";
  throw new FileError(blob, "write", detail, "ENOSPC");
}
