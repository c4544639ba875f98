/**
 * Byte-pair encoding as a model of a tokenizer.
 *
 * @module
 */
import { CheckpointError } from "../../errors.ts";
import { MAX_MERGES, Merges } from "./bpe_merges.ts";
import { type Model, PieceCache, readVocab, unknownPieceError } from "./model.ts";
import type { JsonPart } from "./part.ts";
import { utf8 } from "./unicode.ts";

/** Pieces that are longer are cut where no merge reaches over, as pieces without pre-tokenizer are full documents. */
const LONG_PIECE = 64;

/**
 * Reads a BPE model.
 *
 * @throws {CheckpointError} naming what is not supported
 */
export function readBpe(part: JsonPart): Model {
  const dropout = part.raw("dropout");
  if (dropout !== null && dropout !== 0) part.refuse("dropout", "ids would be drawn at random in each encoding");
  return new BpeModel(part);
}

class BpeModel implements Model {
  readonly vocab: ReadonlyMap<string, number>;
  readonly size: number;
  readonly #file: string;
  readonly #unknown: string | undefined;
  readonly #prefix: string;
  readonly #suffix: string;
  readonly #fusesUnknown: boolean;
  readonly #ignoresMerges: boolean;
  readonly #bytes: readonly number[] | undefined;
  readonly #merges: Merges;
  readonly #tokens: readonly string[];
  readonly #cache = new PieceCache();
  #joined: ReadonlySet<number> | undefined;

  constructor(part: JsonPart) {
    this.#file = part.file;
    this.vocab = readVocab(part);
    this.size = this.vocab.size;
    this.#unknown = part.raw("unk_token") === null ? undefined : part.string("unk_token");
    this.#prefix = part.string("continuing_subword_prefix", "");
    this.#suffix = part.string("end_of_word_suffix", "");
    this.#fusesUnknown = part.boolean("fuse_unk", false);
    this.#ignoresMerges = part.boolean("ignore_merges", false);
    const bytes = part.boolean("byte_fallback", false)
      ? Array.from({ length: 256 }, (_, byte) => this.vocab.get(byteToken(byte)) ?? -1)
      : undefined;
    this.#bytes = bytes;
    const { merges, tokens } = readMerges(part, this.vocab, this.#prefix);
    this.#merges = new Merges(merges);
    this.#tokens = tokens;
  }

  tokenize(piece: string, out: number[]): void {
    if (this.#ignoresMerges) {
      const id = this.vocab.get(piece);
      if (id !== undefined) return void out.push(id);
    }
    if (piece.length <= LONG_PIECE || this.#prefix !== "" || this.#suffix !== "") {
      return this.#cache.add(piece, out, this.#merge);
    }
    for (const word of this.#wordsOf(piece)) this.#cache.add(word, out, this.#merge);
  }

  readonly #merge = (piece: string, out: number[]): void => {
    const ids = this.#symbolsOf(piece);
    this.#merges.apply(ids);
    for (const id of ids) out.push(id);
  };

  /** The ids of characters. */
  #symbolsOf(piece: string): number[] {
    const ids: number[] = [];
    // An unknown character waits for the next known one; bytes in place of one go past it.
    let waiting: number | undefined;
    for (let start = 0; start < piece.length;) {
      const end = start + ((piece.codePointAt(start) ?? 0) > 0xffff ? 2 : 1);
      const symbol = (start > 0 ? this.#prefix : "") + piece.slice(start, end) +
        (end === piece.length ? this.#suffix : "");
      start = end;
      const id = this.vocab.get(symbol);
      if (id !== undefined) {
        if (waiting !== undefined) ids.push(waiting);
        waiting = undefined;
        ids.push(id);
        continue;
      }
      const bytes = this.#bytes === undefined
        ? undefined
        : Array.from(utf8(symbol), (byte) => this.#bytes?.[byte] ?? -1);
      if (bytes !== undefined && !bytes.includes(-1)) {
        ids.push(...bytes);
        continue;
      }
      if (this.#unknown === undefined) continue;
      if (waiting !== undefined && !this.#fusesUnknown) ids.push(waiting);
      waiting ??= this.vocab.get(this.#unknown);
      if (waiting === undefined) {
        const why = `its unk_token ${JSON.stringify(this.#unknown)} is not in its vocabulary`;
        throw unknownPieceError(this.#file, symbol, why);
      }
    }
    if (waiting !== undefined) ids.push(waiting);
    return ids;
  }

  /** Cuts a piece between known characters that no merge joins: what is merged on one side does not change the other. */
  *#wordsOf(piece: string): Generator<string> {
    const joined = this.#joined ??= joinedCharacters(this.#tokens);
    let start = 0;
    let before = piece.codePointAt(0) ?? 0;
    let isKnown = this.vocab.has(String.fromCodePoint(before));
    for (let at = before > 0xffff ? 2 : 1; at < piece.length;) {
      const code = piece.codePointAt(at) ?? 0;
      const isNextKnown = this.vocab.has(String.fromCodePoint(code));
      if (isKnown && isNextKnown && !joined.has(before * 0x200000 + code)) {
        yield piece.slice(start, at);
        start = at;
      }
      before = code;
      isKnown = isNextKnown;
      at += code > 0xffff ? 2 : 1;
    }
    yield piece.slice(start);
  }
}

/** The token of a byte where a character has none. */
export function byteToken(byte: number): string {
  return `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`;
}

/** All characters that are neighbours in a token that merges make. */
function joinedCharacters(tokens: readonly string[]): ReadonlySet<number> {
  const found = new Set<number>();
  for (const token of tokens) {
    let before = -1;
    for (const character of token) {
      const code = character.codePointAt(0) ?? 0;
      if (before >= 0) found.add(before * 0x200000 + code);
      before = code;
    }
  }
  return found;
}

function readMerges(
  part: JsonPart,
  vocab: ReadonlyMap<string, number>,
  prefix: string,
): { readonly merges: readonly (readonly [number, number, number])[]; readonly tokens: readonly string[] } {
  const list = part.list("merges");
  if (list.length > MAX_MERGES) part.fail("merges", `at most ${MAX_MERGES} merges`, list.length);
  const tokens: string[] = [];
  const merges = list.map((value, i): readonly [number, number, number] => {
    const pair: readonly unknown[] = typeof value === "string" ? value.split(" ") : Array.isArray(value) ? value : [];
    const [left, right] = pair;
    if (pair.length !== 2 || typeof left !== "string" || typeof right !== "string") {
      part.fail(`merges[${i}]`, "two tokens", value);
    }
    const made = left + right.slice(prefix.length);
    tokens.push(made);
    const [first, second, id] = [left, right, made].map((token) => {
      const known = vocab.get(token);
      if (known !== undefined) return known;
      throw new CheckpointError(
        part.file,
        `${part.path}.merges[${i}]: ${JSON.stringify(token)} is not in the vocabulary`,
      );
    });
    return [first ?? -1, second ?? -1, id ?? -1];
  });
  return { merges, tokens };
}
