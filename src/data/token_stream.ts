/**
 * Documents as one stream of token ids with an end-of-text token after each, kept in a file so that it is made once. The
 * trainer chooses the rank that makes it: data does not know ranks.
 *
 * Invariant: a cache file is named by its inputs (text, tokenizer, this format) and appears complete, so an existing file
 * is right.
 *
 * @module
 */
import { ArgumentError, CheckpointError } from "../errors.ts";
import { sha256 } from "../runtime/checksum.ts";
import { openReadable, pathKind, type WritableFile } from "../runtime/files.ts";
import { makeCacheFile } from "./cache_file.ts";
import { KeptFingerprint, stampOf } from "./fingerprints.ts";
import type { TextSource } from "./documents.ts";
import { EOS_PLACES } from "./end_of_text.ts";
import type { Tokenizer } from "./tokenizer.ts";

// Note [Token file]
// Ids as little-endian uint16 (vocabulary up to 65536) or int32, then the number of ids of each document as uint32, then 32
// bytes: "fstokens", uint32 version, uint32 bytes of an id, uint64 ids, uint64 documents. The numbers come last because they
// are known last. A file's name has its version, as files of version 1 do not say where documents end.
const MAGIC = "fstokens";
const VERSION = 2;
/** Changes when the same text gives other tokens. */
const TOKENS_VERSION = 1;
const TRAILER = 32;
/** Ids that are gathered before they are written. */
const CHUNK = 1 << 18;

/** Packed tokens, read by place. */
export interface TokenStream {
  /** Number of tokens. */
  readonly length: number;
  /** Changes with the tokens: hexadecimal. */
  readonly fingerprint: string;
  /**
   * Fills `into` with the tokens from `start` on.
   *
   * @throws {ArgumentError} if the stream ends before
   */
  read(start: number, into: Int32Array): Promise<void>;
  /**
   * Tokens of each document, one behind the other. @default it is not known where documents end
   *
   * @throws {CheckpointError} if a file of tokens is damaged
   */
  documentLengths?(): Uint32Array;
  /** Gives up what it holds open. */
  close(): void;
}

/** The progress of packing. */
export interface PackingProgress {
  /** Documents packed. */
  readonly documents: number;
  /** Tokens made of them. */
  readonly tokens: number;
  /** Bytes of source text read. */
  readonly bytesRead: number;
  /** Bytes of source text in all. */
  readonly byteLength: number;
}

/** The packed tokens of a source, as a file that may have to be made first. */
export interface TokenCache {
  /** The file. */
  readonly path: string;
  /** One fingerprint of text and tokenizer together: hexadecimal, the same on every rank. */
  readonly fingerprint: string;
  /** The fingerprint of the text: {@link TextSource.fingerprint}. */
  readonly textFingerprint: string;
  /** True if the file exists. */
  exists(): boolean;
  /**
   * Makes the file. Concurrent calls do the work twice, harmlessly.
   *
   * @param onProgress called after each document
   * @throws {ConfigError} naming file and line of text that cannot be read
   * @throws {ArgumentError} if there is no token at all
   * @throws {CheckpointError} if a file of the text is changed meanwhile
   * @throws {FileError} if it cannot be written; nothing is left behind
   */
  build(onProgress?: (progress: PackingProgress) => void): Promise<void>;
  /**
   * Opens the file.
   *
   * @throws {FileError} if it is not there
   * @throws {CheckpointError} if it is damaged
   */
  open(): TokenStream;
}

/**
 * The cache of a source under a tokenizer. The first time all text is read, to know it. Later its files are looked at: sizes, times
 * and some blocks of them.
 *
 * @param tokenizer encodes the documents; it must name an end-of-text token
 * @param directory folder of the cache files; made when needed
 * @param known fingerprint of the text, where another rank has read it. @default it is read, or looked up
 * @throws {CheckpointError} if the tokenizer names no end-of-text token
 */
export function tokenCache(
  source: TextSource,
  tokenizer: Tokenizer,
  directory: string,
  known?: string,
): TokenCache {
  const { files, meaning } = source;
  const look = (): KeptFingerprint | undefined =>
    meaning === undefined ? undefined : new KeptFingerprint(directory, files, meaning);
  const before = known === undefined ? look() : undefined;
  const kept = known ?? before?.read();
  const textFingerprint = kept ?? source.fingerprint();
  const fingerprint = fingerprintOf(textFingerprint, tokenizer);
  const path = `${directory}/tokens-${fingerprint.slice(0, 32)}_v${VERSION}.bin`;
  const exists = (): boolean => pathKind(path) === "file";
  if (kept === undefined && exists()) before?.keep(textFingerprint);
  return {
    path,
    fingerprint,
    textFingerprint,
    exists,
    build: async (onProgress) => {
      const stamp = (): string | undefined => meaning === undefined ? undefined : stampOf(files, meaning).print;
      await makeCacheFile(directory, path, stamp, (file) => pack(source, tokenizer, file, onProgress));
      before?.keep(textFingerprint);
    },
    open: () => openTokens(path, fingerprint),
  };
}

/**
 * Packs a source into memory: for texts that need no file.
 *
 * @param known fingerprint of the text, where another rank has read it. @default it is read
 * @throws {ConfigError} naming file and line of text that cannot be read
 * @throws {ArgumentError} if there is no text at all, or a document is no valid Unicode text
 * @throws {CheckpointError} if the tokenizer names no end-of-text token
 */
export async function packInMemory(source: TextSource, tokenizer: Tokenizer, known?: string): Promise<TokenStream> {
  const parts: Int32Array[] = [];
  for await (const { ids } of idsOf(source, tokenizer)) parts.push(ids);
  const tokens = new Int32Array(parts.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const part of parts) {
    tokens.set(part, at);
    at += part.length;
  }
  const lengths = Uint32Array.from(parts, ({ length }) => length);
  return tokensInMemory(tokens, fingerprintOf(known ?? source.fingerprint(), tokenizer), lengths);
}

/**
 * Tokens that are already in memory, not copied, as a stream, which a resume compares by `fingerprint`.
 *
 * @param documentLengths tokens of each document, one behind the other. @default it is not known where documents end
 * @throws {ArgumentError} if these are not all tokens
 */
export function tokensInMemory(tokens: Int32Array, fingerprint: string, documentLengths?: Uint32Array): TokenStream {
  if (documentLengths !== undefined) {
    const all = documentLengths.reduce((sum, length) => sum + length, 0);
    if (all !== tokens.length) {
      throw new ArgumentError(`Documents of ${all} tokens in all are not ${tokens.length} tokens`);
    }
  }
  return {
    length: tokens.length,
    fingerprint,
    ...documentLengths === undefined ? {} : { documentLengths: () => documentLengths },
    read(start, into): Promise<void> {
      checkRange(start, into.length, tokens.length);
      into.set(tokens.subarray(start, start + into.length));
      return Promise.resolve();
    },
    close: () => undefined,
  };
}

/**
 * The end-of-text token that packing adds.
 *
 * @throws {CheckpointError} if the tokenizer names none
 */
export function eosOf({ eosId, path }: Tokenizer): number {
  if (eosId !== undefined) return eosId;
  const remedy = "name it as eos_token in tokenizer_config.json beside it, or set --eos-token (eosToken)";
  throw new CheckpointError(
    path,
    `Packing needs an end-of-text token, and found none: looked for ${EOS_PLACES}; ${remedy}`,
  );
}

function fingerprintOf(text: string, tokenizer: Tokenizer): string {
  return sha256([`${MAGIC} ${TOKENS_VERSION} ${eosOf(tokenizer)}\n`, tokenizer.fingerprint, text]);
}

/** Refuses ids that a tokenizer says it does not give: the file of tokens would wrap them. */
function requireIds(ids: readonly number[], { vocabSize, path }: Tokenizer): void {
  for (const id of ids) {
    if (Number.isInteger(id) && id >= 0 && id < vocabSize) continue;
    throw new ArgumentError(
      `Cannot pack id ${id} of tokenizer '${path}': ids must be integers from 0 to ${vocabSize - 1}`,
    );
  }
}

/**
 * The ids of a document.
 *
 * @param eosId the end-of-text token, put behind them. @default none, as the document goes on
 * @throws {ArgumentError} if the text is no valid Unicode, or an id is none of the tokenizer's
 */
export function documentIds(text: string, file: string, tokenizer: Tokenizer, eosId?: number): Int32Array {
  // A source of one's own may give what UTF-8 cannot hold, and an encoder would write U+FFFD in its place.
  if (!text.isWellFormed()) throw new ArgumentError(`A document of ${file} has half of a surrogate pair`);
  const encoded = tokenizer.encode(text);
  requireIds(encoded, tokenizer);
  if (eosId !== undefined) requireIds([eosId], tokenizer);
  const ids = new Int32Array(encoded.length + (eosId === undefined ? 0 : 1));
  ids.set(encoded);
  if (eosId !== undefined) ids[encoded.length] = eosId;
  return ids;
}

/** The ids of each document with the end of text behind them, and how far reading has come. */
async function* idsOf(
  source: TextSource,
  tokenizer: Tokenizer,
): AsyncGenerator<{ readonly ids: Int32Array; readonly bytesRead: number }> {
  const eosId = eosOf(tokenizer);
  let isEmpty = true;
  for await (const { text, file, bytesRead } of source.documents()) {
    isEmpty = false;
    yield { ids: documentIds(text, file, tokenizer, eosId), bytesRead };
  }
  if (isEmpty) throw new ArgumentError(`There is no text in ${source.files.join(", ")}`);
}

async function pack(
  source: TextSource,
  tokenizer: Tokenizer,
  file: WritableFile,
  onProgress: ((progress: PackingProgress) => void) | undefined,
): Promise<void> {
  const width = tokenizer.vocabSize <= 65536 ? 2 : 4;
  const chunk = width === 2 ? new Uint16Array(CHUNK) : new Int32Array(CHUNK);
  const bytes = new Uint8Array(chunk.buffer);
  let filled = 0;
  let tokens = 0;
  let documents = 0;
  const lengths: number[] = [];
  for await (const { ids, bytesRead } of idsOf(source, tokenizer)) {
    for (const id of ids) {
      if (filled === CHUNK) {
        file.write(bytes);
        filled = 0;
      }
      chunk[filled++] = id;
    }
    tokens += ids.length;
    documents++;
    lengths.push(ids.length);
    onProgress?.({ documents, tokens, bytesRead, byteLength: source.byteLength });
  }
  file.write(bytes.subarray(0, filled * width));
  file.write(new Uint8Array(Uint32Array.from(lengths).buffer));
  const trailer = new Uint8Array(TRAILER);
  const view = new DataView(trailer.buffer);
  trailer.set(new TextEncoder().encode(MAGIC));
  view.setUint32(8, VERSION, true);
  view.setUint32(12, width, true);
  view.setBigUint64(16, BigInt(tokens), true);
  view.setBigUint64(24, BigInt(documents), true);
  file.write(trailer);
}

function openTokens(path: string, fingerprint: string): TokenStream {
  const { length, width, documents } = readTrailer(path);
  const file = openReadable(path);
  // Rows are mostly of one length: a read takes the buffer of the read before.
  let halves = new Uint16Array(0);
  let bytes = new Uint8Array(halves.buffer);
  return {
    length,
    fingerprint,
    async read(start, into): Promise<void> {
      checkRange(start, into.length, length);
      if (width === 4) {
        file.read(start * 4, new Uint8Array(into.buffer, into.byteOffset, into.byteLength));
        return;
      }
      if (halves.length !== into.length) {
        halves = new Uint16Array(into.length);
        bytes = new Uint8Array(halves.buffer);
      }
      file.read(start * 2, bytes);
      into.set(halves);
    },
    documentLengths() {
      const lengths = new Uint32Array(documents);
      file.read(length * width, new Uint8Array(lengths.buffer));
      if (lengths.reduce((sum, tokens) => sum + tokens, 0) === length) return lengths;
      throw damaged(path);
    },
    close: () => file.close(),
  };
}

/** The fields at the end of a file of tokens. */
interface Trailer {
  /** Tokens. */
  readonly length: number;
  /** Bytes of each. */
  readonly width: number;
  readonly documents: number;
}

function damaged(path: string): CheckpointError {
  return new CheckpointError(path, "This token file is damaged: delete it; it is made again");
}

function readTrailer(path: string): Trailer {
  using file = openReadable(path);
  const trailer = new Uint8Array(TRAILER);
  if (file.byteLength >= TRAILER) file.read(file.byteLength - TRAILER, trailer);
  const view = new DataView(trailer.buffer);
  const width = view.getUint32(12, true);
  const length = Number(view.getBigUint64(16, true));
  const magic = new TextDecoder().decode(trailer.subarray(0, 8));
  const documents = Number(view.getBigUint64(24, true));
  const right = magic === MAGIC && view.getUint32(8, true) === VERSION && (width === 2 || width === 4);
  if (!right || length * width + documents * 4 + TRAILER !== file.byteLength) throw damaged(path);
  return { length, width, documents };
}

function checkRange(start: number, count: number, length: number): void {
  if (!Number.isSafeInteger(start) || start < 0 || start + count > length) {
    throw new ArgumentError(`Tokens ${start} to ${start + count} are not within the stream's ${length}`);
  }
}
