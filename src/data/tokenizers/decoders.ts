/**
 * Decoders of a `tokenizer.json`: they make text of tokens.
 *
 * @module
 */
import type { JsonPart } from "./part.ts";
import { patternOf } from "./pattern.ts";
import { replaceMatches } from "./split.ts";
import { byteLetters, textOf, utf8 } from "./unicode.ts";

/** Changes tokens; joined, they are the text. */
export type Decoder = (tokens: readonly string[]) => readonly string[];

/** The types that {@link readDecoder} supports. */
const TYPES = [
  "ByteLevel",
  "ByteFallback",
  "Fuse",
  "Strip",
  "Replace",
  "Metaspace",
  "WordPiece",
  "BPEDecoder",
  "Sequence",
] as const;

/**
 * Reads a decoder.
 *
 * @throws {CheckpointError} naming what is not supported
 */
export function readDecoder(part: JsonPart): Decoder {
  const made = make(part);
  part.close();
  return made;
}

function make(part: JsonPart): Decoder {
  const type = TYPES.find((name) => name === part.type) ?? part.refuseType(TYPES);
  switch (type) {
    case "ByteLevel":
      for (const key of ["add_prefix_space", "trim_offsets", "use_regex"]) part.boolean(key, true);
      return byteLevel();
    case "ByteFallback":
      return byteFallback;
    case "Fuse":
      return (tokens) => [tokens.join("")];
    case "Strip":
      return strip(part.character("content"), part.count("start"), part.count("stop"));
    case "Replace": {
      const pattern = patternOf(part);
      const content = part.string("content");
      return (tokens) => tokens.map((token) => replaceMatches(token, pattern, content));
    }
    case "Metaspace":
      return metaspace(part);
    case "WordPiece":
      return wordPiece(part.string("prefix", "##"), part.boolean("cleanup", true));
    case "BPEDecoder": {
      const suffix = part.string("suffix", "</w>");
      return (tokens) => tokens.map((token, i) => token.replaceAll(suffix, i === tokens.length - 1 ? "" : " "));
    }
    case "Sequence": {
      const steps = part.parts("decoders").map(readDecoder);
      return (tokens) => steps.reduce((current, step) => step(current), tokens);
    }
  }
}

function byteLevel(): Decoder {
  const bytes = new Map(byteLetters().map((letter, byte) => [letter, byte]));
  return (tokens) => {
    const out: number[] = [];
    for (const token of tokens) {
      const own = Array.from(token, (letter) => bytes.get(letter) ?? -1);
      // A token with a character that stands for no byte, such as a special one with a blank, is text as it is.
      for (const byte of own.includes(-1) ? utf8(token) : own) out.push(byte);
    }
    return [textOf(out)];
  };
}

/** Bytes next to each other are UTF-8, or as many U+FFFD as there are bytes. */
function byteFallback(tokens: readonly string[]): readonly string[] {
  const out: string[] = [];
  let bytes: number[] = [];
  const flush = (): void => {
    if (bytes.length === 0) return;
    try {
      out.push(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(Uint8Array.from(bytes)));
    } catch {
      for (const _ of bytes) out.push("\ufffd");
    }
    bytes = [];
  };
  for (const token of tokens) {
    const hex = /^<0x([0-9a-fA-F]{2}|\+[0-9a-fA-F])>$/.exec(token)?.[1];
    if (hex === undefined) {
      flush();
      out.push(token);
    } else bytes.push(parseInt(hex, 16));
  }
  flush();
  return out;
}

function strip(content: string, start: number, stop: number): Decoder {
  return (tokens) =>
    tokens.map((token) => {
      const characters = [...token];
      let from = 0;
      while (from < start && characters[from] === content) from++;
      let to = characters.length;
      while (characters.length - to < stop && to > from && characters[to - 1] === content) to--;
      return characters.slice(from, to).join("");
    });
}

function metaspace(part: JsonPart): Decoder {
  const replacement = part.character("replacement");
  if (part.string("str_rep", replacement) !== replacement) part.refuse("str_rep", "it is not the replacement");
  const declared = part.oneOf("prepend_scheme", ["always", "first", "never"], "always");
  const scheme = part.boolean("add_prefix_space", true) ? declared : "never";
  part.boolean("split", true);
  return (tokens) => tokens.map((token, i) => token.replaceAll(replacement, i === 0 && scheme !== "never" ? "" : " "));
}

/** Pairs of a text with the blanks that English gets between tokens, and the text without them. */
const CLEANUPS = [[" .", "."], [" ?", "?"], [" !", "!"], [" ,", ","], [" ' ", "'"], [" n't", "n't"], [
  " 'm",
  "'m",
]] as const;
const LATE_CLEANUPS = [[" 's", "'s"], [" 've", "'ve"], [" 're", "'re"]] as const;

/** Removes blanks before marks, as `clean_up_tokenization` of `transformers`. */
export function cleanUp(text: string): string {
  return [...CLEANUPS, ...LATE_CLEANUPS].reduce((current, [from, to]) => current.replaceAll(from, to), text);
}

function wordPiece(prefix: string, cleans: boolean): Decoder {
  const cleanups = [...CLEANUPS, [" do not", " don't"] as const, ...LATE_CLEANUPS];
  return (tokens) =>
    tokens.map((token, i) => {
      const joined = i === 0 ? token : token.startsWith(prefix) ? token.slice(prefix.length) : ` ${token}`;
      return cleans ? cleanups.reduce((current, [from, to]) => current.replaceAll(from, to), joined) : joined;
    });
}
