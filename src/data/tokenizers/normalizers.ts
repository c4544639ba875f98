/**
 * Normalizers of a `tokenizer.json`.
 *
 * @module
 */
import { ArgumentError } from "../../errors.ts";
import { JsonPart } from "./part.ts";
import { patternOf } from "./pattern.ts";
import { replaceMatches } from "./split.ts";
import { byteLetters, classOf, FLAGS, utf8, WHITE_SPACE } from "./unicode.ts";
import { ACCENTS, BERT_ACCENTS, CONTROL, NEWER } from "./unicode_tables.ts";

/** Changes text before it is cut. */
export type Normalizer = (text: string) => string;

/** A normalizer, and what else of it counts. */
export interface NormalizerPart {
  readonly normalize: Normalizer;
  /** True if the text may then begin with another of its characters, or with one that it did not have. */
  readonly movesStart: boolean;
  /** True if it may make several characters of one, between which a token may end. */
  readonly divides: boolean;
}

/** The types that {@link readNormalizer} supports. */
const TYPES = [
  "NFC",
  "NFD",
  "NFKC",
  "NFKD",
  "Lowercase",
  "Strip",
  "StripAccents",
  "Prepend",
  "Replace",
  "ByteLevel",
  "BertNormalizer",
  "Sequence",
] as const;

/**
 * Reads a normalizer.
 *
 * @throws {CheckpointError} naming what is not supported
 */
export function readNormalizer(part: JsonPart): NormalizerPart {
  const made = make(part);
  part.close();
  return made;
}

function make(part: JsonPart): NormalizerPart {
  const type = TYPES.find((name) => name === part.type) ?? part.refuseType(TYPES);
  switch (type) {
    case "NFC":
    case "NFD":
    case "NFKC":
    case "NFKD":
      return { normalize: unicodeForm(type), movesStart: false, divides: true };
    case "Lowercase":
      return { normalize: lowercase, movesStart: false, divides: true };
    case "Strip":
      return {
        normalize: strip(part.boolean("strip_left"), part.boolean("strip_right")),
        movesStart: true,
        divides: false,
      };
    case "StripAccents":
      return { normalize: remover(ACCENTS), movesStart: true, divides: false };
    case "Prepend": {
      const prepend = part.string("prepend");
      return { normalize: (text) => text === "" ? "" : `${prepend}${text}`, movesStart: true, divides: false };
    }
    case "Replace": {
      const pattern = patternOf(part);
      const content = part.string("content");
      const replaced = new JsonPart(part.raw("pattern"), part.file, `${part.path}.pattern`).raw("String");
      const isOneByOne = [replaced, content].every((text) => typeof text === "string" && [...text].length === 1);
      return { normalize: replacer(pattern, content, part), movesStart: !isOneByOne, divides: false };
    }
    case "ByteLevel": {
      const letters = byteLetters();
      return {
        normalize: (text) => Array.from(utf8(text), (byte) => letters[byte]).join(""),
        movesStart: false,
        divides: true,
      };
    }
    case "BertNormalizer":
      return { normalize: bert(part), movesStart: true, divides: true };
    case "Sequence": {
      const steps = part.parts("normalizers").map(readNormalizer);
      return {
        normalize: (text) => steps.reduce((current, { normalize }) => normalize(current), text),
        movesStart: steps.some(({ movesStart }) => movesStart),
        divides: steps.some(({ divides }) => divides),
      };
    }
  }
}

/** Python's `tokenizers` puts the content in twice where nothing at the start of a text matches, which is not imitated. */
function replacer(pattern: RegExp, content: string, { file, path }: JsonPart): Normalizer {
  return (text) => {
    pattern.lastIndex = 0;
    const first = pattern.exec(text);
    if (first?.index === 0 && first[0] === "") {
      throw new ArgumentError(`${file}: ${path}.pattern must match a character or more, and matches nothing in a text`);
    }
    return replaceMatches(text, pattern, content);
  };
}

/** A form of Unicode by the data of `tokenizers`: what only newer data knows is left as it is, and nothing joins across it. */
function unicodeForm(form: "NFC" | "NFD" | "NFKC" | "NFKD"): Normalizer {
  const newer = new RegExp(classOf(NEWER), FLAGS);
  // One search for any other: a repetition over a long text overflows V8's stack.
  const beyondAscii = /[^\0-\x7f]/;
  return (text) => {
    if (!beyondAscii.test(text)) return text;
    newer.lastIndex = 0;
    if (!newer.test(text)) return text.normalize(form);
    newer.lastIndex = 0;
    let out = "";
    let end = 0;
    for (const { 0: character, index } of text.matchAll(newer)) {
      out += text.slice(end, index).normalize(form) + character;
      end = index + character.length;
    }
    return out + text.slice(end).normalize(form);
  };
}

/** Upper-case letters that are new in Unicode 17, which not every runtime knows. */
const NEW_UPPER = /[\u{a7ce}\u{a7d2}\u{a7d4}\u{16ea0}-\u{16eb8}]/gu;

/** Lower-case letters, each by itself: JavaScript writes a sigma at the end of a word otherwise. */
function lowercase(text: string): string {
  const lower = text.replaceAll("\u03a3", "\u03c3").toLowerCase();
  return lower.replace(NEW_UPPER, (letter) => {
    const code = letter.codePointAt(0) ?? 0;
    return String.fromCodePoint(code + (code < 0x10000 ? 1 : 27));
  });
}

function strip(left: boolean, right: boolean): Normalizer {
  const start = new RegExp(`^${WHITE_SPACE}+`, "v");
  const last = new RegExp(WHITE_SPACE, "v");
  return (text) => {
    const rest = left ? text.replace(start, "") : text;
    let end = rest.length;
    // All blanks of Unicode are of one unit.
    while (right && end > 0 && last.test(rest.charAt(end - 1))) end--;
    return rest.slice(0, end);
  };
}

function remover(ranges: string): Normalizer {
  const pattern = new RegExp(classOf(ranges), FLAGS);
  return (text) => text.replace(pattern, "");
}

/** Characters that BERT takes for words of their own. */
const CHINESE = "3400-4dbf 4e00-9fff f900-faff 20000-2a6df 2a700-2b73f 2b740-2b81f 2b920-2ceaf 2f800-2fa1f";

function bert(part: JsonPart): Normalizer {
  const lowers = part.boolean("lowercase", true);
  const steps: Normalizer[] = [];
  if (part.boolean("clean_text", true)) {
    const control = remover(CONTROL);
    const blanks = new RegExp(WHITE_SPACE, FLAGS);
    steps.push((text) => control(text).replace(blanks, " "));
  }
  if (part.boolean("handle_chinese_chars", true)) {
    const chinese = new RegExp(classOf(CHINESE), FLAGS);
    steps.push((text) => text.replace(chinese, (character) => ` ${character} `));
  }
  if (part.boolean("strip_accents", lowers)) {
    const decompose = unicodeForm("NFD");
    const accents = remover(BERT_ACCENTS);
    steps.push((text) => accents(decompose(text)));
  }
  if (lowers) steps.push(lowercase);
  return (text) => steps.reduce((current, step) => step(current), text);
}
