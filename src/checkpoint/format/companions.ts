/**
 * Small files that lie beside a model's weights: tokenizer, chat template, generation settings, remote code, licence. A
 * model that was opened from a folder keeps them, and each save of it writes them again.
 *
 * Note [What is kept]: every regular file but
 * - weights, their indexes and adapters, in any format: the save writes its own
 * - `config.json`, and the files of this library's checkpoints, which the save writes
 * - another program's training state: optimizers, schedulers, logs
 * - files of more than 64 MiB that are not a tokenizer's, and pointers of Git LFS
 * - hidden files, and what is no file
 * A sub-folder is kept or left out as one: with weights, a training state, or more than 200 files it is left out.
 *
 * @module
 */
import { parseJsonObject } from "../../json.ts";
import { foreignContent } from "../../runtime/file_kind.ts";
import {
  absolutePath,
  fileByteLength,
  listDirectory,
  makeDirectory,
  pathKind,
  readBytesSync,
  replaceFile,
  resolveLinks,
} from "../../runtime/files.ts";

/** Small files that are saved with a model. */
export interface Companions {
  /** Contents by path relative to the model's folder, `/` between the names of sub-folders. Rank 0 alone calls it. */
  read(): ReadonlyMap<string, Uint8Array>;
}

/** A file that a model's saves leave out. */
export interface LeftOutFile {
  /** Path relative to the folder; of a sub-folder, with `/` at its end. */
  readonly name: string;
  /** The reason, in a few words. */
  readonly why: string;
}

/** The companions of a folder. */
export interface FolderCompanions extends Companions {
  /** Files of the folder that its saves leave out, but for hidden ones and what a save writes itself. */
  readonly leftOut: readonly LeftOutFile[];
}

/** Most bytes of a companion. The largest tokenizers have about 35 MB, and are kept whatever their size. */
export const MAX_COMPANION_BYTES: number = 2 ** 26;
/** Most files of a sub-folder that is kept. */
const MAX_FOLDER_FILES = 200;
/** The deepest level of sub-folders that is searched. */
const MAX_FOLDER_DEPTH = 4;
/** The file of a chat template, which counts before `chat_template` of `tokenizer_config.json`. */
const CHAT_TEMPLATE = "chat_template.jinja";
/** Files that one line names. */
const MOST_SHOWN = 8;
/** Longest pointer of Git LFS, by its specification. */
const MAX_POINTER_BYTES = 1024;

/** Files of this library, and `config.json`: a save writes its own. */
const OWN = /^(config\.json|manifest\.json|metrics\.jsonl)$/;
const ADAPTER = /^adapter_(config\.json|model\.)/;
const INDEX = /\.index(\.\w+)?\.json$/;
const WEIGHTS =
  /\.(safetensors|bin|pt|pth|ckpt|gguf|ggml|h5|hdf5|msgpack|onnx|onnx_data|ot|npz|npy|tflite|mlmodel|pb|distcp|pkl|pickle|nemo|llamafile|partial)$/i;
const TRAINING_STATE =
  /^(trainer_state\.json|training_args\.(bin|json)|(optimizer|scheduler|scaler|rng_state|random_states|custom_checkpoint)[\w-]*\.(pt|pth|bin|pkl|json|safetensors)|latest|latest_checkpointed_iteration\.txt|zero_to_fp32\.py|events\.out\.tfevents\..*)$/;
const TRAINING_FOLDER =
  /^(checkpoint-\d+|global_step\d+|iter_\d+|(pytorch_model|optimizer)(_fsdp)?_\d+|runs|wandb|lightning_logs|__pycache__|node_modules)$/;

const GENERATION_CONFIG = "generation_config.json";
/** Keys of it that hold ids of tokens. */
const TOKEN_IDS =
  /_token_ids?$|^(begin_)?suppress_tokens$|^(bad|force)_words_ids$|^forced_decoder_ids$|^sequence_bias$|^stop_strings$/;

/** Files of tokenizers, which go with each other. */
const TOKENIZER =
  /^(tokenizer[\w.-]*|vocab\.(json|txt)|merges\.txt|special_tokens_map\.json|added_tokens\.json|spiece\.model|sentencepiece[\w.]*\.model|[\w.-]+\.tiktoken|chat_template\.(jinja|json)|(additional_)?chat_templates\/.*)$/;

/** True if a path relative to a model's folder is a file of its tokenizer; chat templates count as such. */
export function isTokenizerFile(name: string): boolean {
  return TOKENIZER.test(name);
}

/**
 * Tells by its name whether a file is left out; see Note [What is kept].
 *
 * @param name the path relative to the model's folder
 * @returns the reason; empty for files that a save writes itself and for hidden files; undefined for a companion
 */
function reasonLeftOut(name: string): string | undefined {
  const parts = name.split("/");
  const base = parts.at(-1) ?? name;
  if (parts.some((part) => part.startsWith(".")) || OWN.test(name)) return "";
  if (parts.slice(0, -1).some((part) => TRAINING_FOLDER.test(part)) || TRAINING_STATE.test(base)) {
    return "training state";
  }
  if (ADAPTER.test(base)) return "an adapter";
  if (WEIGHTS.test(base)) return "weights";
  return INDEX.test(base) ? "an index of weights" : undefined;
}

/**
 * The companions among the files of a folder that is not here, by their names; see Note [What is kept].
 *
 * @param names paths relative to the folder, which may be a stranger's
 */
export function companionNames(names: readonly string[]): readonly string[] {
  const sound = names.filter((name) => name.split("/").every((part) => /^[^.\\\p{C}][^\\\p{C}]*$/u.test(part)));
  const topOf = (name: string): string | undefined => name.includes("/") ? name.slice(0, name.indexOf("/")) : undefined;
  const counts = new Map<string, number>();
  for (const name of sound) {
    const top = topOf(name);
    if (top === undefined) continue;
    const isKept = reasonLeftOut(name) === undefined;
    counts.set(top, isKept ? (counts.get(top) ?? 0) + 1 : Infinity);
  }
  const isIn = (top: string | undefined): boolean => top === undefined || (counts.get(top) ?? 0) <= MAX_FOLDER_FILES;
  return sound.filter((name) => reasonLeftOut(name) === undefined && isIn(topOf(name)));
}

/** Lists the companions of a folder. Contents are read when they are first asked for, and kept. */
export function companionsOf(folder: string): FolderCompanions {
  const { files, leftOut } = listOf(folder, "", 0);
  let contents: ReadonlyMap<string, Uint8Array> | undefined;
  return {
    leftOut,
    read: () => contents ??= new Map(files.map((name) => [name, readBytesSync(`${folder}/${name}`)])),
  };
}

/**
 * Names files of a folder that are neither read nor saved again in one line; undefined where there are none.
 *
 * @param used names of the files that are read, which are not among them
 * @param but the text after "Left unused in '<folder>'"
 */
export function describeLeftOut(
  folder: string,
  { leftOut: all }: Pick<FolderCompanions, "leftOut">,
  used: readonly string[],
  but: string = "",
): string | undefined {
  const leftOut = all.filter(({ name }) => !used.includes(name));
  if (leftOut.length === 0) return undefined;
  const shown = leftOut.slice(0, MOST_SHOWN).map(({ name, why }) => `${name} (${why})`).join(", ");
  const more = leftOut.length > MOST_SHOWN ? ` and ${leftOut.length - MOST_SHOWN} more` : "";
  return `Left unused in '${folder}'${but}: ${shown}${more}`;
}

/** Companions with the files of another folder added, where these have none of that name. Tokenizers are not mixed. */
export function withMissing(companions: Companions | undefined, others: Companions): Companions {
  return {
    read: () => {
      const own = companions?.read() ?? new Map<string, Uint8Array>();
      const hasTokenizer = [...own.keys()].some(isTokenizerFile);
      return new Map([...[...others.read()].filter(([name]) => !(hasTokenizer && isTokenizerFile(name))), ...own]);
    },
  };
}

/**
 * Companions with another tokenizer's files in place of all that they have of one.
 *
 * @param files paths by the names that they get
 */
export function withTokenizer(
  companions: Companions | undefined,
  files: Iterable<readonly [name: string, path: string]>,
): Companions {
  const named = [...files];
  let own: ReadonlyMap<string, Uint8Array> | undefined;
  return {
    read: () => {
      own ??= new Map(named.map(([name, path]) => [name, readBytesSync(path)]));
      return new Map([...[...companions?.read() ?? []].filter(([name]) => !isTokenizerFile(name)), ...own]);
    },
  };
}

/** Companions with another chat template, by the file of it, in place of the template in the tokenizer's folder. */
export function withChatTemplate(companions: Companions | undefined, file: string): Companions {
  let own: Uint8Array | undefined;
  return {
    read: () => {
      own ??= readBytesSync(file);
      return new Map([...companions?.read() ?? [], [CHAT_TEMPLATE, own]]);
    },
  };
}

/** Generation settings under another tokenizer: ids of its tokens alone are kept. */
export function withTokenIds(companions: Companions, eosId: number | undefined): Companions {
  return {
    read: () => {
      const contents = new Map(companions.read());
      const bytes = contents.get(GENERATION_CONFIG);
      if (bytes === undefined) return contents;
      const settings = parseJsonObject(bytes, { file: GENERATION_CONFIG, what: "generation config", maxDepth: 32 });
      const kept = Object.entries(settings).filter(([key]) => !TOKEN_IDS.test(key));
      const changed = { ...Object.fromEntries(kept), ...eosId === undefined ? {} : { eos_token_id: eosId } };
      return contents.set(GENERATION_CONFIG, new TextEncoder().encode(`${JSON.stringify(changed, undefined, 2)}\n`));
    },
  };
}

/** Writes companions into a folder, each aside first. */
export function writeCompanions(folder: string, contents: Iterable<readonly [string, Uint8Array]>): void {
  for (const [name, bytes] of contents) {
    const end = name.lastIndexOf("/");
    if (end >= 0) makeDirectory(`${folder}/${name.slice(0, end)}`);
    replaceFile(`${folder}/${name}`, bytes);
  }
}

/**
 * The files that a tokenizer is saved as, with their paths: what lies beside a `tokenizer.json` goes with it.
 *
 * @param files the files that the tokenizer was read from, the first of them its `tokenizer.json`
 */
export function tokenizerFilesOf([file, ...others]: readonly string[]): readonly (readonly [string, string])[] {
  if (file === undefined) return [];
  const nameOf = (path: string): string => path.slice(path.lastIndexOf("/") + 1);
  const read = [["tokenizer.json", file] as const, ...others.map((path) => [nameOf(path), path] as const)];
  if (nameOf(file) !== "tokenizer.json") return read;
  const folder = file.slice(0, -nameOf(file).length) || "./";
  return [
    ...read,
    ...listOf(folder, "", 0).files.filter(isTokenizerFile).map((name) => [name, folder + name] as const),
  ];
}

interface Listing {
  readonly files: readonly string[];
  readonly leftOut: readonly LeftOutFile[];
}

function listOf(folder: string, prefix: string, depth: number): Listing {
  const [files, leftOut]: [string[], LeftOutFile[]] = [[], []];
  const leave = (name: string, why: string): void => void (why !== "" && leftOut.push({ name, why }));
  for (const entry of listDirectory(`${folder}/${prefix}`)) {
    const name = prefix + entry;
    const why = reasonLeftOut(name);
    const kind = pathKind(`${folder}/${name}`);
    if (kind === "directory") {
      const refused = why ?? (TRAINING_FOLDER.test(entry) ? "training state" : undefined);
      if (refused !== undefined) leave(`${name}/`, refused);
      else addFolder(folder, name, depth, files, leave);
    } else if (why !== undefined) leave(name, why);
    else if (kind !== "file") leave(name, kind === "none" ? "a broken link" : "not a regular file");
    else {
      const problem = problemOf(`${folder}/${name}`, name);
      if (problem === undefined) files.push(name);
      else leave(name, problem);
    }
  }
  return { files, leftOut };
}

/** Adds a sub-folder's files, or says why the full folder is left out. */
function addFolder(
  folder: string,
  name: string,
  depth: number,
  files: string[],
  leave: (name: string, why: string) => void,
): void {
  const path = `${folder}/${name}`;
  // A link may lead anywhere, back to this folder too.
  if (resolveLinks(path) !== `${resolveLinks(absolutePath(folder))}/${name}`) return leave(`${name}/`, "a link");
  if (depth >= MAX_FOLDER_DEPTH) return leave(`${name}/`, "too deep");
  const inner = listOf(folder, `${name}/`, depth + 1);
  if (inner.leftOut.length > 0) return leave(`${name}/`, `with ${inner.leftOut[0]?.why}`);
  if (inner.files.length > MAX_FOLDER_FILES) return leave(`${name}/`, `${inner.files.length} files`);
  files.push(...inner.files);
}

function problemOf(path: string, name: string): string | undefined {
  const byteLength = fileByteLength(path);
  if (byteLength > MAX_COMPANION_BYTES && !isTokenizerFile(name)) return "larger than 64 MiB";
  if (byteLength === 0 || byteLength > MAX_POINTER_BYTES) return undefined;
  return foreignContent(readBytesSync(path))?.startsWith("a pointer of Git LFS") === true
    ? "a pointer of Git LFS: run 'git lfs pull'"
    : undefined;
}
