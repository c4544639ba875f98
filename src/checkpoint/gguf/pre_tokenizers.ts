/**
 * llama.cpp's names of pre-tokenizers: how a byte-level tokenizer cuts texts into words is not in GGUF files, but in
 * llama.cpp's code, under these names.
 *
 * @module
 */
import * as z from "zod";
import { UnsupportedError } from "../../errors.ts";

/** A part of `tokenizer.json` that has a type. */
const part = z.looseObject({ type: z.string() });

/** The step of a sequence of pre-tokenizers that cuts words. */
export const preTokenizerSchema: z.ZodType<PreTokenizerStep | null | undefined> = z.looseObject({
  type: z.string(),
  pretokenizers: z.array(part).optional(),
}).nullish();

/** A step of pre-tokenization in `tokenizer.json`. */
export interface PreTokenizerStep {
  readonly [key: string]: unknown;
  readonly type: string;
  readonly pretokenizers?: readonly { readonly [key: string]: unknown; readonly type: string }[] | undefined;
}

const CONTRACTIONS = String.raw`(?i:'s|'t|'re|'ve|'m|'ll|'d)`;
const REST = String.raw`\s*[\r\n]+|\s+(?!\S)|\s+`;
const SIGNS = String.raw` ?[^\s\p{L}\p{N}]+[\r\n]*`;
const LETTERS = String.raw`[^\r\n\p{L}\p{N}]?\p{L}+`;
const UPPER = String.raw`[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`;
const LOWER = String.raw`[\p{Ll}\p{Lm}\p{Lo}\p{M}]`;
const [CAPITALIZED, CAPITALS] = [
  String.raw`[^\r\n\p{L}\p{N}]?` + `${UPPER}*${LOWER}+`,
  String.raw`[^\r\n\p{L}\p{N}]?` + `${UPPER}+${LOWER}*`,
];
const PATHS = String.raw` ?[^\s\p{L}\p{N}]+[\r\n/]*`;

/**
 * Names by the regular expression of the words. llama.cpp takes a word that the vocabulary has as one token (`ignore_merges`) by
 * the name alone.
 */
const BY_REGEX: readonly { readonly regex: string; readonly ignoresMerges: boolean; readonly name: string }[] = [
  ...[true, false].map((ignoresMerges) => ({
    regex: String.raw`${CONTRACTIONS}|${LETTERS}|\p{N}{1,3}|${SIGNS}|${REST}`,
    ignoresMerges,
    name: ignoresMerges ? "llama-bpe" : "smaug-bpe",
  })),
  { regex: String.raw`${CONTRACTIONS}|${LETTERS}|\p{N}|${SIGNS}|${REST}`, ignoresMerges: false, name: "qwen2" },
  {
    regex: String.raw`${CONTRACTIONS}|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|${REST}`,
    ignoresMerges: false,
    name: "qwen35",
  },
  {
    regex: String.raw`${CAPITALIZED}|${CAPITALS}|\p{N}|${PATHS}|${REST}`,
    ignoresMerges: true,
    name: "tekken",
  },
  {
    regex: String.raw`${CAPITALIZED}${CONTRACTIONS}?|${CAPITALS}${CONTRACTIONS}?|\p{N}{1,3}|${PATHS}|${REST}`,
    ignoresMerges: false,
    name: "gpt-4o",
  },
];

/**
 * llama.cpp's name of a byte-level pre-tokenizer.
 *
 * @param ignoresMerges true if a word that the vocabulary has is one token, without regard to merges
 * @param where the file, for messages
 * @throws {UnsupportedError} if llama.cpp has none that cuts words so, as far as is known here
 */
export function preTokenizerName(step: PreTokenizerStep, ignoresMerges: boolean, where: string): string {
  const steps = step.type === "Sequence" ? step.pretokenizers ?? [] : [step];
  const name = nameOf(steps, ignoresMerges);
  if (name !== undefined) return name;
  throw new UnsupportedError(
    `Cannot tell which of llama.cpp's pre-tokenizers cuts words as ${where} does (ignore_merges ${ignoresMerges}): ` +
      `${JSON.stringify(step)}. Known are those of ${
        [...new Set(BY_REGEX.map((one) => one.name))].join(", ")
      }, gpt-2 ` +
      `and smollm; if you know its name in llama.cpp, give it by --pre NAME`,
  );
}

function nameOf(
  steps: readonly { readonly [key: string]: unknown; readonly type: string }[],
  ignoresMerges: boolean,
): string | undefined {
  const last = steps.at(-1);
  if (last?.type !== "ByteLevel" || last["add_prefix_space"] === true) return undefined;
  const [first, ...others] = steps.slice(0, -1);
  const cutsWords = last["use_regex"] !== false;
  if (first === undefined) return cutsWords && !ignoresMerges ? "gpt-2" : undefined;
  if (others.length > 0) return undefined;
  if (first.type === "Digits" && first["individual_digits"] === true) {
    return cutsWords && !ignoresMerges ? "smollm" : undefined;
  }
  if (first.type !== "Split" || cutsWords || first["behavior"] !== "Isolated" || first["invert"] === true) {
    return undefined;
  }
  const regex = z.looseObject({ Regex: z.string() }).safeParse(first["pattern"]).data?.Regex;
  return BY_REGEX.find((one) => one.regex === regex && one.ignoresMerges === ignoresMerges)?.name;
}
