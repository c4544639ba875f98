/**
 * A tokenizer's model: the vocabulary, and how a piece of text becomes ids of it.
 *
 * @module
 */
import { ArgumentError } from "../../errors.ts";
import { isJsonObject } from "../../json.ts";
import type { JsonPart } from "./part.ts";

/** Makes ids of pieces of text. */
export interface Model {
  /** Ids by token. */
  readonly vocab: ReadonlyMap<string, number>;
  /** The number of tokens as Python counts them: two names of one id count twice. */
  readonly size: number;
  /**
   * Adds the ids of a piece to `out`.
   *
   * @throws {ArgumentError} if some of it has no id
   */
  tokenize(piece: string, out: number[]): void;
}

/** Reads a vocabulary that is an object of ids by token. */
export function readVocab(part: JsonPart): ReadonlyMap<string, number> {
  const value = part.raw("vocab");
  if (!isJsonObject(value)) part.fail("vocab", "an object of ids by token");
  const vocab = new Map<string, number>();
  for (const [token, id] of Object.entries(value)) {
    if (typeof id !== "number" || !Number.isSafeInteger(id) || id < 0 || id >= 2 ** 31) {
      part.fail(`vocab[${JSON.stringify(token)}]`, "an id", id);
    }
    vocab.set(token, id);
  }
  return vocab;
}

/** Says that text has no id. */
export function unknownPieceError(file: string, piece: string, why: string): ArgumentError {
  return new ArgumentError(`${file} has no id for ${JSON.stringify(piece.slice(0, 40))}, as ${why}`);
}

/** Pieces that are longer are not remembered: few come again. */
const MAX_PIECE = 256;

/** Pieces that are remembered at most; then all are forgotten. */
const MAX_PIECES = 100_000;

/** Remembers the ids of pieces that were made before. */
export class PieceCache {
  readonly #ids = new Map<string, readonly number[]>();

  /** Adds the ids of a piece to `out`, made by `make` where they are not known. */
  add(piece: string, out: number[], make: (piece: string, out: number[]) => void): void {
    if (piece.length > MAX_PIECE) return make(piece, out);
    let ids = this.#ids.get(piece);
    if (ids === undefined) {
      const made: number[] = [];
      make(piece, made);
      if (this.#ids.size >= MAX_PIECES) this.#ids.clear();
      this.#ids.set(piece, ids = made);
    }
    for (const id of ids) out.push(id);
  }
}
