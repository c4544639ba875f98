/**
 * The models whose pieces are words: WordLevel, a word an id, and WordPiece, the longest beginnings of a word that are known.
 *
 * @module
 */
import { type Model, PieceCache, readVocab, unknownPieceError } from "./model.ts";
import type { JsonPart } from "./part.ts";

/**
 * Reads a WordLevel model.
 *
 * @throws {CheckpointError} naming the part that is wrong
 */
export function readWordLevel(part: JsonPart): Model {
  const { file } = part;
  const vocab = readVocab(part);
  const unknown = part.string("unk_token");
  return {
    vocab,
    size: vocab.size,
    tokenize(piece, out): void {
      const id = vocab.get(piece) ?? vocab.get(unknown);
      if (id === undefined) throw noUnknown(file, piece, unknown);
      out.push(id);
    },
  };
}

/**
 * Reads a WordPiece model.
 *
 * @throws {CheckpointError} naming the part that is wrong
 */
export function readWordPiece(part: JsonPart): Model {
  const { file } = part;
  const vocab = readVocab(part);
  const unknown = part.string("unk_token");
  const prefix = part.string("continuing_subword_prefix");
  const most = part.count("max_input_chars_per_word");
  const cache = new PieceCache();
  const cut = (piece: string, out: number[]): void => {
    const ids = longestBeginnings([...piece], vocab, prefix, most);
    if (ids !== undefined) return void out.push(...ids);
    const id = vocab.get(unknown);
    if (id === undefined) throw noUnknown(file, piece, unknown);
    out.push(id);
  };
  return { vocab, size: vocab.size, tokenize: (piece, out) => cache.add(piece, out, cut) };
}

/** Undefined where the word is too long, or a rest of it has no known beginning. */
function longestBeginnings(
  characters: readonly string[],
  vocab: ReadonlyMap<string, number>,
  prefix: string,
  most: number,
): readonly number[] | undefined {
  if (characters.length > most) return undefined;
  const ids: number[] = [];
  for (let start = 0; start < characters.length;) {
    let end = characters.length;
    let id: number | undefined;
    while (end > start && id === undefined) {
      id = vocab.get((start > 0 ? prefix : "") + characters.slice(start, end).join(""));
      if (id === undefined) end--;
    }
    if (id === undefined) return undefined;
    ids.push(id);
    start = end;
  }
  return ids;
}

function noUnknown(file: string, piece: string, unknown: string): Error {
  return unknownPieceError(file, piece, `its unk_token ${JSON.stringify(unknown)} is not in its vocabulary`);
}
