/**
 * Byte pair encodings of SentencePiece, which llama.cpp's `llama` tokenizer runs by scores of tokens where `tokenizer.json` has
 * ranks of merges: equal only where every pair that joins to a token is a merge, in the order of the tokens' scores.
 *
 * @module
 */
import { UnsupportedError } from "../../errors.ts";
import type { TokenizerFiles } from "./tokenizer_files.ts";

/** Scores of tokens that no merge gives. */
const NEVER = -10000;

/**
 * The score of each token: the negative rank of the first merge that gives it.
 *
 * @throws {UnsupportedError} if scores cannot order merges as the tokenizer does
 */
export function sentencePieceScores(files: TokenizerFiles, tokens: readonly string[]): readonly number[] {
  const { file, merges, vocab, added } = files;
  const ranks = new Map<string, number>();
  const pairs = new Set<string>();
  let last: string | undefined;
  for (const [rank, [left, right]] of merges.entries()) {
    const joined = left + right;
    pairs.add(`${left} ${right}`);
    if (joined !== last && ranks.has(joined)) refuse(file, `merges that give '${joined}' do not follow each other`);
    if (!ranks.has(joined)) ranks.set(joined, rank);
    last = joined;
  }
  const outside = new Set(added.map(({ content }) => content));
  for (const token of vocab.keys()) {
    if (outside.has(token) || /^<0x[0-9A-F]{2}>$/.test(token)) continue;
    const letters = [...token];
    let left = "";
    for (const letter of letters.slice(0, -1)) {
      left += letter;
      const right = token.slice(left.length);
      if (vocab.has(left) && vocab.has(right) && !pairs.has(`${left} ${right}`)) {
        refuse(file, `'${left}' and '${right}' are tokens, and so is '${token}', but they are no merge`);
      }
    }
  }
  return tokens.map((token) => {
    const rank = ranks.get(token);
    return rank === undefined ? NEVER : -rank;
  });
}

/** Tells in `isAdded` if a space is put before each text, which the files say in one of two ways. */
export function spacePrefix(
  { file, normalizers, preTokenizer, vocab }: TokenizerFiles,
): { readonly isAdded: boolean; readonly notes: readonly string[] } {
  const isReplace = (one: { readonly [key: string]: unknown; readonly type: string }): boolean =>
    one.type === "Replace" && JSON.stringify(one["pattern"]) === '{"String":" "}' && one["content"] === "▁";
  const isPrepend = (one: { readonly [key: string]: unknown; readonly type: string }): boolean =>
    one.type === "Prepend" && one["prepend"] === "▁";
  const odd = normalizers.find((one) => !isReplace(one) && !isPrepend(one));
  if (odd !== undefined) refuse(file, `it has the normalizer ${JSON.stringify(odd)}`);
  if (preTokenizer === undefined) return { isAdded: normalizers.some(isPrepend), notes: [] };
  if (preTokenizer.type !== "Metaspace") refuse(file, `it has the pre-tokenizer ${JSON.stringify(preTokenizer)}`);
  if (preTokenizer["split"] !== false) {
    const inside = [...vocab.keys()].find((token) => token.includes("▁", 1));
    if (inside !== undefined) refuse(file, `it cuts texts at spaces, and has the token '${inside}'`);
  }
  const scheme = preTokenizer["prepend_scheme"] ?? (preTokenizer["add_prefix_space"] === false ? "never" : "always");
  if (scheme === "never") return { isAdded: false, notes: [] };
  const first = scheme === "first" ? ", nor after a special token" : "";
  return {
    isAdded: true,
    notes: [`the tokenizer puts no space before a text that begins with one${first}, and llama.cpp does`],
  };
}

function refuse(file: string, why: string): never {
  throw new UnsupportedError(
    `Cannot write the tokenizer of '${file}' into GGUF: llama.cpp's tokenizer 'llama' works as SentencePiece's byte pair ` +
      `encoding does, and this one does not: ${why}`,
  );
}
