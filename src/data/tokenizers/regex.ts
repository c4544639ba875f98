/**
 * Regular expressions of Oniguruma, which Python's `tokenizers` runs, as expressions of JavaScript.
 *
 * Invariant: what is translated matches the same texts. Syntax that is not known to is refused.
 *
 * @module
 */
import { FLAGS, propertyClass, WHITE_SPACE, wordClass } from "./unicode.ts";

/** Categories and properties by the names that Oniguruma and JavaScript share. */
const PROPERTIES = new Set(
  ("L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Co Cn " +
    "Alphabetic Uppercase Lowercase White_Space").split(" "),
);

/** Scripts by the names that Oniguruma and JavaScript share. */
const SCRIPTS = new Set([
  "Han",
  "Hiragana",
  "Katakana",
  "Hangul",
  "Latin",
  "Cyrillic",
  "Greek",
  "Arabic",
  "Hebrew",
  "Thai",
  "Devanagari",
]);

/** Escapes of one character. */
const CHARACTERS = new Map([["n", 10], ["r", 13], ["t", 9], ["v", 11], ["f", 12], ["a", 7], ["e", 27]]);

/** Pairs of letters that are one letter in the other case, as SS is ß: JavaScript does not know them. */
const FOLDED_PAIRS = /ss|ff|fi|fl|st/i;

/** An expression that was read. */
export interface TranslatedRegex {
  readonly source: string;
  readonly flags: string;
}

/** Says what of an expression is not supported. */
export class RegexError extends Error {}

/**
 * Translates an expression.
 *
 * @throws {RegexError} naming syntax that is not supported
 */
export function translateRegex(pattern: string): TranslatedRegex {
  const reader = new Reader(pattern);
  const source = reader.alternatives();
  if (!reader.isAtEnd) reader.refuse("an unmatched ')'");
  return { source, flags: FLAGS };
}

/** An expression that matches a string as it is. */
export function literalRegex(text: string): RegExp {
  return new RegExp([...text].map(literal).join(""), FLAGS);
}

/** A character of an expression that stands for itself, in and outside of classes. */
function literal(character: string): string {
  const code = character.codePointAt(0) ?? 0;
  return /[a-zA-Z0-9]/.test(character) ? character : `\\u{${code.toString(16)}}`;
}

/** `\w` outside of a class, where Oniguruma counts some more numbers among characters of words. */
function outerWordClass(): string {
  return `[${wordClass()}\\u{b2}\\u{b3}\\u{b9}\\u{bc}-\\u{be}]`;
}

/** A character of ASCII with those that are the same but for case, within a class. */
function inAllCases(character: string): string {
  const others = new Map([["s", "\\u{17f}"], ["k", "\\u{212a}"]]);
  const [lower, upper] = [character.toLowerCase(), character.toUpperCase()];
  return `${literal(lower)}${lower === upper ? "" : literal(upper)}${others.get(lower) ?? ""}`;
}

class Reader {
  readonly #characters: readonly string[];
  readonly #pattern: string;
  #at = 0;
  #atomics = 0;
  #ignoresCase = false;
  /** Letters next to each other within a group that ignores case. */
  #letters = "";

  constructor(pattern: string) {
    this.#pattern = pattern;
    this.#characters = [...pattern];
  }

  get isAtEnd(): boolean {
    return this.#at >= this.#characters.length;
  }

  refuse(what: string): never {
    throw new RegexError(`${what} at character ${this.#at} of ${JSON.stringify(this.#pattern)} is not supported`);
  }

  /** Takes a text if it is next. */
  #take(text: string): boolean {
    const characters = [...text];
    if (characters.some((character, i) => this.#characters[this.#at + i] !== character)) return false;
    this.#at += characters.length;
    return true;
  }

  #next(): string {
    const character = this.#characters[this.#at];
    if (character === undefined) this.refuse("an end");
    this.#at++;
    return character;
  }

  alternatives(): string {
    let out = "";
    while (!this.isAtEnd && this.#characters[this.#at] !== ")") {
      if (this.#take("|")) {
        out += "|";
        this.#letters = "";
      } else out += this.#quantified();
    }
    this.#letters = "";
    return out;
  }

  #quantified(): string {
    const anchor = this.#anchor();
    if (anchor !== undefined) {
      if (/[*+?{]/.test(this.#characters[this.#at] ?? "")) this.refuse("a repeated anchor");
      return anchor;
    }
    const atom = this.#atom();
    const quantifier = this.#quantifier();
    if (quantifier === "") return atom;
    this.#letters = "";
    const isInterval = quantifier.endsWith("}");
    if (this.#take("?")) {
      if (isInterval && !quantifier.includes(",")) this.refuse("'?' after an exact number of times");
      return `${atom}${quantifier}?`;
    }
    // After an interval, '+' repeats it: this is Ruby's syntax.
    if (isInterval && this.#take("+")) return `(?:${atom}${quantifier})+`;
    // An atomic group gives nothing back: in JavaScript a lookahead does not either.
    const isPossessive = this.#take("+");
    if (/[*+?{]/.test(this.#characters[this.#at] ?? "")) this.refuse("a repeated repetition");
    return isPossessive ? this.#atomic(`${atom}${quantifier}`) : `${atom}${quantifier}`;
  }

  #atomic(inner: string): string {
    const name = `a${this.#atomics++}`;
    return `(?:(?=(?<${name}>${inner}))\\k<${name}>)`;
  }

  #quantifier(): string {
    for (const sign of ["*", "+", "?"]) if (this.#take(sign)) return sign;
    const rest = this.#characters.slice(this.#at, this.#at + 16).join("");
    const interval = /^\{(\d*)(,?)(\d*)\}/.exec(rest);
    if (interval === null) return "";
    const [text, least = "", comma = "", most = ""] = interval;
    if (least === "" && most === "") this.refuse("braces without a number");
    if (most !== "" && Number(most) < Number(least)) this.refuse("an interval that falls");
    this.#at += text.length;
    return `{${least === "" ? "0" : least}${comma}${most}}`;
  }

  #anchor(): string | undefined {
    if (this.#take("^")) return "(?:^|(?<=\\n)(?=[^]))";
    if (this.#take("$")) return "(?=\\n|$)";
    if (this.#take("\\A")) return "^";
    if (this.#take("\\z")) return "$";
    const word = outerWordClass();
    if (this.#take("\\b")) return `(?:(?<=${word})(?!${word})|(?<!${word})(?=${word}))`;
    if (this.#take("\\B")) return `(?:(?<=${word})(?=${word})|(?<!${word})(?!${word}))`;
    for (const sign of ["(?=", "(?!", "(?<=", "(?<!"]) if (this.#take(sign)) return this.#group(sign);
    return undefined;
  }

  #atom(): string {
    if (this.#take("(?:")) return this.#group("(?:");
    if (this.#take("(?>")) return this.#atomic(this.#group("(?:"));
    if (this.#take("(?i:")) {
      const before = this.#ignoresCase;
      this.#ignoresCase = true;
      // Both cases are written out, as V8 forgets U+017F and U+212A in such a group.
      const group = this.#group("(?:");
      this.#ignoresCase = before;
      return group;
    }
    if (this.#take("(?")) this.refuse("this kind of group");
    if (this.#take("(")) return this.#group("(?:");
    if (this.#take("[")) return this.#class();
    if (this.#take(".")) return "[^\\n]";
    if (this.#take("\\")) return this.#escape(false);
    const character = this.#next();
    if ("*+?".includes(character)) this.refuse("a repetition of nothing");
    if (character === "{" && /^\d*,?\d*\}/.test(this.#characters.slice(this.#at, this.#at + 16).join(""))) {
      this.refuse("a repetition of nothing");
    }
    return this.#plain(character);
  }

  #group(opening: string): string {
    this.#letters = "";
    const inner = this.alternatives();
    if (!this.#take(")")) this.refuse("an unclosed group");
    return `${opening}${inner})`;
  }

  /** A character that stands for itself. */
  #plain(character: string): string {
    if (this.#ignoresCase) {
      if (character > "\x7f") this.refuse("a character beyond ASCII where case is ignored,");
      this.#letters += character;
      if (FOLDED_PAIRS.test(this.#letters)) this.refuse("two letters that some character is another case of,");
      return `[${inAllCases(character)}]`;
    }
    return literal(character);
  }

  #escape(isInClass: boolean): string {
    const character = this.#next();
    const control = CHARACTERS.get(character);
    if (control !== undefined) return `\\u{${control.toString(16)}}`;
    if (this.#ignoresCase && /[a-zA-Z]/.test(character)) this.refuse(`\\${character} where case is ignored`);
    const word = (): string => isInClass ? wordClass() : outerWordClass();
    switch (character) {
      case "s":
        return WHITE_SPACE;
      case "S":
        return `[^${WHITE_SPACE}]`;
      case "d":
        return propertyClass("Nd");
      case "D":
        return `[^${propertyClass("Nd")}]`;
      case "w":
        return word();
      case "W":
        return `[^${word()}]`;
      case "h":
        return "[0-9a-fA-F]";
      case "p":
      case "P":
        return this.#property(character === "P");
      case "x":
        return this.#code(/^(?:\{([0-9a-fA-F]{1,6})\}|([0-7][0-9a-fA-F]))/);
      case "u":
        return this.#code(/^([0-9a-fA-F]{4})/);
    }
    if (/[a-zA-Z0-9]/.test(character)) this.refuse(`\\${character}`);
    return this.#plain(character);
  }

  #property(isNegated: boolean): string {
    const named = /^\{(\^?)([A-Za-z_]+)\}/.exec(this.#characters.slice(this.#at, this.#at + 32).join(""));
    const [text = "", caret, name = ""] = named ?? [];
    const isScript = SCRIPTS.has(name);
    if (!isScript && !PROPERTIES.has(name)) this.refuse(`the property ${text === "" ? "here" : text}`);
    this.#at += text.length;
    const known = propertyClass(isScript ? `Script=${name}` : name);
    return isNegated !== (caret === "^") ? `[^${known}]` : known;
  }

  #code(form: RegExp): string {
    const match = form.exec(this.#characters.slice(this.#at, this.#at + 8).join(""));
    if (match === null) this.refuse("this escape of a code point");
    const code = parseInt(match[1] ?? match[2] ?? "", 16);
    if (code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) this.refuse("this code point");
    this.#at += match[0].length;
    return this.#plain(String.fromCodePoint(code));
  }

  /** A class, from after its bracket on. */
  #class(): string {
    const isNegated = this.#take("^");
    const operands: string[] = [];
    let items = "";
    const start = this.#at;
    for (;;) {
      if (this.isAtEnd) this.refuse("an unclosed class");
      if (this.#characters[this.#at] === "]" && this.#at > start) break;
      if (this.#take("&&")) {
        if (items === "") this.refuse("an intersection with nothing");
        operands.push(`[${items}]`);
        items = "";
      } else items += this.#classItem();
    }
    this.#at++;
    if (items === "") this.refuse("an intersection with nothing");
    // Oniguruma and JavaScript differ in what a negation means where case is ignored.
    if (this.#ignoresCase && (isNegated || operands.length > 0)) this.refuse("such a class where case is ignored");
    const content = operands.length === 0 ? items : [...operands, `[${items}]`].join("&&");
    return `[${isNegated ? "^" : ""}${content}]`;
  }

  /** A character, a range, a set or a nested class. */
  #classItem(): string {
    if (this.#characters[this.#at] === "[") {
      if (this.#characters[this.#at + 1] === ":") return this.#posix();
      this.#at++;
      return this.#class();
    }
    const start = this.#characters[this.#at] ?? "";
    const from = this.#classCharacter();
    const isRange = this.#characters[this.#at] === "-" && this.#characters[this.#at + 1] !== "]" &&
      !(this.#characters[this.#at + 1] === "&" && this.#characters[this.#at + 2] === "&");
    if (!isRange) return from;
    const last = this.#characters[this.#at + 1] ?? "";
    if (from.startsWith("[") || from.startsWith("\\p")) this.refuse("a range from a set");
    if (from === "\\u{2d}") this.refuse("a range from '-'");
    this.#at++;
    if (this.#characters[this.#at] === "[") this.refuse("a range to a set");
    const to = this.#classCharacter();
    if (to.startsWith("[") || to.startsWith("\\p")) this.refuse("a range to a set");
    if (!this.#ignoresCase) return `${from}-${to}`;
    if (!/^[a-zA-Z0-9]{2}$/.test(`${start}${last}`)) this.refuse("such a range where case is ignored");
    const [first, end] = [start.charCodeAt(0), last.charCodeAt(0)];
    return Array.from({ length: end - first + 1 }, (_, i) => inAllCases(String.fromCharCode(first + i))).join("");
  }

  #classCharacter(): string {
    if (this.#take("\\")) return this.#escape(true);
    const character = this.#next();
    if (this.#ignoresCase && character > "\x7f") this.refuse("a character beyond ASCII where case is ignored,");
    return this.#ignoresCase ? inAllCases(character) : literal(character);
  }

  #posix(): string {
    const text = this.#characters.slice(this.#at, this.#at + 12).join("");
    const name = /^\[:([a-z]+):\]/.exec(text)?.[1];
    const known = new Map([["alpha", "Alphabetic"], ["digit", "Nd"], ["space", "White_Space"], ["upper", "Uppercase"], [
      "lower",
      "Lowercase",
    ]]).get(name ?? "");
    if (known === undefined || this.#ignoresCase) this.refuse("this class of POSIX");
    this.#at += (name ?? "").length + 4;
    return propertyClass(known);
  }
}
