/**
 * The Unigram model of SentencePiece: of all ways to cut a piece, the one whose tokens have the greatest sum of scores.
 *
 * @module
 */
import { byteToken } from "./bpe_model.ts";
import { type Model, PieceCache, unknownPieceError } from "./model.ts";
import type { JsonPart } from "./part.ts";
import { utf8 } from "./unicode.ts";

/** An unknown character scores so much less than the worst token. */
const UNKNOWN_PENALTY = 10;

/**
 * Reads a Unigram model.
 *
 * @throws {CheckpointError} naming the part that is wrong
 */
export function readUnigram(part: JsonPart): Model {
  return new UnigramModel(part);
}

class UnigramModel implements Model {
  readonly vocab: ReadonlyMap<string, number>;
  readonly size: number;
  readonly #file: string;
  readonly #unknown: number | undefined;
  readonly #fallsBack: boolean;
  readonly #scores: readonly number[];
  readonly #unknownScore: number;
  readonly #cache = new PieceCache();
  /** Children in the tree of tokens, by node · 2^16 + unit. */
  readonly #children = new Map<number, number>();
  /** The token that ends in each node; -1 where none does. */
  readonly #ends: number[] = [-1];

  constructor(part: JsonPart) {
    const entries = part.list("vocab").map((entry, i): readonly [string, number] => {
      const [token, score]: readonly unknown[] = Array.isArray(entry) && entry.length === 2 ? entry : [];
      if (typeof token !== "string" || !token.isWellFormed() || typeof score !== "number") {
        part.fail(`vocab[${i}]`, "a token and its score", entry);
      }
      return [token, score];
    });
    const unknown = part.raw("unk_id") === null ? undefined : part.count("unk_id");
    if (unknown !== undefined && unknown >= entries.length) part.fail("unk_id", `below ${entries.length}`);
    this.#file = part.file;
    this.#unknown = unknown;
    this.#fallsBack = part.boolean("byte_fallback", false);
    // The id of a token that is listed twice is the last one.
    this.vocab = new Map(entries.map(([token], id) => [token, id]));
    this.size = entries.length;
    this.#scores = entries.map(([, score]) => score);
    this.#unknownScore = this.#scores.reduce((least, score) => Math.min(least, score), Infinity) - UNKNOWN_PENALTY;
    for (const [token, id] of this.vocab) this.#insert(token, id);
  }

  #insert(token: string, id: number): void {
    let node = 0;
    for (let i = 0; i < token.length; i++) {
      const key = node * 0x10000 + token.charCodeAt(i);
      let child = this.#children.get(key);
      if (child === undefined) this.#children.set(key, child = this.#ends.push(-1) - 1);
      node = child;
    }
    this.#ends[node] = id;
  }

  tokenize(piece: string, out: number[]): void {
    this.#cache.add(piece, out, this.#cut);
  }

  readonly #cut = (piece: string, out: number[]): void => {
    for (const token of this.#bestCut(piece)) {
      const id = this.vocab.get(token);
      if (id !== undefined) out.push(id);
      else this.#addUnknown(token, out);
    }
  };

  #addUnknown(text: string, out: number[]): void {
    if (this.#fallsBack) {
      const ids = Array.from(utf8(text), (byte) => this.vocab.get(byteToken(byte)) ?? -1);
      if (!ids.includes(-1)) {
        for (const id of ids) out.push(id);
        return;
      }
    }
    if (this.#unknown === undefined) throw unknownPieceError(this.#file, text, "its model has no unk_id");
    out.push(this.#unknown);
  }

  /** The texts of the best tokens; neighbours that are unknown are one. */
  #bestCut(piece: string): readonly string[] {
    const { length } = piece;
    const scores = new Float64Array(length + 1);
    const starts = new Int32Array(length + 1).fill(-1);
    const isUnknown = new Uint8Array(length + 1);
    const offer = (start: number, end: number, score: number, unknown: 0 | 1): void => {
      if (starts[end] !== -1 && !(score > (scores[end] ?? 0))) return;
      scores[end] = score;
      starts[end] = start;
      isUnknown[end] = unknown;
    };
    for (let start = 0; start < length;) {
      const score = scores[start] ?? 0;
      const width = (piece.codePointAt(start) ?? 0) > 0xffff ? 2 : 1;
      let hasCharacter = false;
      for (let end = start, node: number | undefined = 0; end < length;) {
        node = this.#children.get(node * 0x10000 + piece.charCodeAt(end++));
        if (node === undefined) break;
        const id = this.#ends[node] ?? -1;
        if (id < 0) continue;
        offer(start, end, (this.#scores[id] ?? 0) + score, id === this.#unknown ? 1 : 0);
        if (end - start === width) hasCharacter = true;
      }
      if (!hasCharacter) {
        if (this.#unknown === undefined) {
          throw unknownPieceError(this.#file, piece.slice(start, start + width), "its model has no unk_id");
        }
        offer(start, start + width, this.#unknownScore + score, 1);
      }
      start += width;
    }
    const texts: string[] = [];
    let unknownEnd = -1;
    for (let end = length; end > 0; end = starts[end] ?? 0) {
      const start = starts[end] ?? 0;
      if (isUnknown[end] === 1) {
        if (unknownEnd < 0) unknownEnd = end;
      } else {
        if (unknownEnd >= 0) texts.push(piece.slice(end, unknownEnd));
        unknownEnd = -1;
        texts.push(piece.slice(start, end));
      }
    }
    if (unknownEnd >= 0) texts.push(piece.slice(0, unknownEnd));
    return texts.reverse();
  }
}
