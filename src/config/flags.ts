/**
 * Command-line flags as data: a table of flags in, their texts out, with every problem listed. What a text means is
 * left to the owner of the table. Cheap to import, because the launcher reads its own flags with it before anything
 * else is loaded. `--a_b` and `--a-b` are the same flag.
 *
 * @module
 */
import { at } from "../at.ts";
import { parseArgs } from "node:util";
import type { ConfigProblem } from "../errors.ts";
import { didYouMean } from "./nearest.ts";

/** One flag of a command. */
export interface Flag {
  /** Name in kebab case, without dashes. */
  readonly name: string;
  /** The names that other programs use: an error answers them with the name here. */
  readonly otherNames?: readonly string[];
  /** One letter that stands for it, without the dash. */
  readonly short?: string;
  /** `switch` takes no value and has a `--no-` form, `one` takes a value, `many` may be repeated. */
  readonly takes: "switch" | "one" | "many";
  /** The value's form in the help text, e.g. `<int>`. */
  readonly placeholder?: string;
  /** Effect of the flag, in one sentence; of a switch, its effect when it is on. */
  readonly description: string;
  /** Default value; the help text shows it for all flags but switches that are off by default. */
  readonly default?: string;
}

/** The values given for one flag. */
export interface FlagUse {
  /** The flag as typed, e.g. `--learning_rate`. */
  readonly typed: string;
  /** The texts given, in order; `true` or `false` for a switch. */
  readonly texts: readonly string[];
}

/** A command line that was read. */
export interface FlagReading {
  /** Uses by flag name. */
  readonly uses: ReadonlyMap<string, FlagUse>;
  /** The first argument that is no flag, and all after it, untouched; empty without `stopAtPositional`. */
  readonly rest: readonly string[];
  /** Everything that was wrong. */
  readonly problems: readonly ConfigProblem[];
}

/**
 * Reads a command line by a table of flags.
 *
 * @param argv the arguments, without program and script
 * @param options `stopAtPositional`: stop at the first argument that is no flag; `positional`: the flag, taken by `many`, that
 *   such arguments are values of; with neither they are problems
 */
export function readFlags(
  flags: readonly Flag[],
  argv: readonly string[],
  options: { readonly stopAtPositional?: boolean; readonly positional?: string | undefined } = {},
): FlagReading {
  const byName = new Map(flags.map((flag) => [flag.name, flag]));
  const tokens = tokenize(flags, argv);
  const uses = new Map<string, FlagUse>();
  const problems: ConfigProblem[] = [];
  // Arguments before this place that are no flags belong to a problem that is listed already.
  let explained = 0;
  const add = ({ name, takes }: Flag, typed: string, text: string): void => {
    const earlier = takes === "many" ? uses.get(name)?.texts ?? [] : [];
    uses.set(name, { typed, texts: [...earlier, text] });
  };

  for (const [i, token] of tokens.entries()) {
    if (token.kind === "option-terminator") continue;
    if (token.kind === "positional") {
      if (token.index < explained) continue;
      if (options.stopAtPositional) return { uses, rest: argv.slice(token.index), problems };
      const taker = options.positional === undefined ? undefined : byName.get(options.positional);
      if (taker !== undefined) {
        add(taker, `--${taker.name}`, token.value);
        continue;
      }
      const list = listBefore(tokens[i - 1], byName);
      if (list === undefined) problems.push({ path: token.value, expected: "a flag", got: `'${token.value}'` });
      else {
        const end = tokens.findIndex(({ kind }, at) => at > i && kind !== "positional");
        const count = (end < 0 ? tokens.length : end) - i;
        problems.push(expandedPattern(list, count));
        explained = token.index + count;
      }
      continue;
    }
    const typed = argv[token.index]?.split("=", 1)[0] ?? token.rawName;
    const negated = token.name.startsWith("no-") ? byName.get(token.name.slice(3)) : undefined;
    const flag = byName.get(token.name) ?? (negated?.takes === "switch" ? negated : undefined);
    if (flag === undefined) {
      problems.push(unknownFlag(typed, token.name, flags));
      // The text after an unknown flag is most likely its value.
      if (token.value === undefined) explained = token.index + 2;
      continue;
    }
    const text = flag.takes === "switch" ? switchText(flag !== byName.get(token.name), token.value) : token.value;
    if (text === undefined || isFlagLike(token)) {
      problems.push({
        path: typed,
        expected: flag.takes === "switch" ? "no value, or true or false" : valueExpected(flag, typed, text),
        got: token.value === undefined ? "nothing" : `'${token.value}'`,
      });
      continue;
    }
    add(flag, typed, text);
  }
  return { uses, rest: [], problems };
}

/** True if the help text was asked for: `--help` or `-h` stands before a `--`. */
export function helpAsked(argv: readonly string[]): boolean {
  const end = argv.indexOf("--");
  return (end < 0 ? argv : argv.slice(0, end)).some((text) => text === "--help" || text === "-h");
}

/** Flags as a help text of at most `width` columns, without a final line break. */
export function describeFlags(flags: readonly Flag[], width: number = 80): string {
  const heads = flags.map((flag) => {
    const short = flag.short === undefined ? "" : `-${flag.short}, `;
    const name = flag.takes === "switch" && flag.default === "true" ? `[no-]${flag.name}` : flag.name;
    const placeholder = flag.placeholder === undefined ? "" : ` ${flag.placeholder}`;
    return `  ${short}--${name}${placeholder}${flag.takes === "many" ? " ..." : ""}`;
  });
  // A narrow terminal leaves the descriptions more than half of it.
  const column = Math.min(34, Math.floor(width * 0.425), Math.max(0, ...heads.map((head) => head.length)) + 2);
  return flags.map((flag, index) => {
    const head = at(heads, index, "head of flag");
    const isOff = flag.takes === "switch" && flag.default !== "true";
    const suffix = flag.default === undefined || isOff ? "" : ` (default: ${flag.default})`;
    const lines = wrapWords(`${flag.description}${suffix}`.trim(), width - column);
    const first = head.length < column ? [head.padEnd(column) + (lines.shift() ?? "")] : [head];
    return [...first, ...lines.map((line) => " ".repeat(column) + line)].map((line) => line.trimEnd()).join("\n");
  }).join("\n");
}

type Token = NonNullable<ReturnType<typeof parseArgs>["tokens"]>[number];

type OptionToken = Extract<Token, { readonly kind: "option" }>;

function tokenize(flags: readonly Flag[], argv: readonly string[]): readonly Token[] {
  const options = Object.fromEntries(flags.map((flag) => [flag.name, {
    type: flag.takes === "switch" ? "boolean" as const : "string" as const,
    multiple: true,
    ...(flag.short === undefined ? {} : { short: flag.short }),
  }]));
  const args = argv.map((text) => text.replace(/^--[^=]+/, (name) => name.replaceAll("_", "-")));
  return parseArgs({ args, options, strict: false, allowPositionals: true, tokens: true }).tokens;
}

function switchText(negated: boolean, value: string | undefined): string | undefined {
  if (value === undefined) return String(!negated);
  return !negated && (value === "true" || value === "false") ? value : undefined;
}

/** True if the value of a flag is the next flag, because no value was given. */
function isFlagLike({ inlineValue, value = "" }: OptionToken): boolean {
  return inlineValue === false && /^-(?![\d.])\S+$/.test(value);
}

function valueExpected({ placeholder }: Flag, typed: string, text: string | undefined): string {
  const value = placeholder === undefined ? "a value" : `a value ${placeholder}`;
  return text === undefined ? value : `${value} (${typed}=${text}, if it begins with a dash)`;
}

/** A flag of several values that stands right before an argument which is no flag, and the value given with the flag. */
function listBefore(
  token: Token | undefined,
  flags: ReadonlyMap<string, Flag>,
): { readonly flag: string; readonly value: string } | undefined {
  if (token?.kind !== "option" || token.inlineValue !== false || isFlagLike(token)) return undefined;
  return flags.get(token.name)?.takes === "many" ? { flag: token.rawName, value: token.value } : undefined;
}

/**
 * The shell replaces a pattern without quotes by the files that it matches: the first becomes the flag's value, the others follow as
 * arguments.
 */
function expandedPattern(
  { flag, value }: { readonly flag: string; readonly value: string },
  more: number,
): ConfigProblem {
  const got =
    `'${value}' and ${more} more. If the shell made them of a pattern, quote the pattern: ${flag} 'texts/*.md'; ` +
    `else repeat ${flag} before each`;
  return { path: flag, expected: "one value", got };
}

function unknownFlag(typed: string, name: string, flags: readonly Flag[]): ConfigProblem {
  const here = flags.find(({ otherNames }) => otherNames?.includes(name));
  if (here !== undefined) {
    const got = `'${typed}'. Here it is '--${here.name}': ${here.description}`;
    return { path: typed, expected: "a known flag", got };
  }
  const names = flags.flatMap((flag) => flag.takes === "switch" ? [flag.name, `no-${flag.name}`] : [flag.name]);
  return { path: typed, expected: "a known flag", got: `'${typed}'${didYouMean(name, names, "--")}` };
}

/** Cuts a text between its words into lines of at most `width` columns; a word that is longer has a line of its own. */
export function wrapWords(text: string, width: number): string[] {
  const lines: string[] = [];
  for (const word of text.split(/\s+/)) {
    const last = lines.at(-1);
    if (last !== undefined && last.length + 1 + word.length <= width) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
  }
  return lines;
}
