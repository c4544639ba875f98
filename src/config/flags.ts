/**
 * Command-line flags as data: a table of flags in, their texts out, with every problem listed. What a text means is
 * left to the owner of the table. Cheap to import, because the launcher reads its own flags with it before anything
 * else is loaded. `--a_b` and `--a-b` are the same flag.
 *
 * @module
 */
import { parseArgs } from "node:util";
import type { ConfigProblem } from "../errors.ts";
import { didYouMean } from "./nearest.ts";

/** One flag of a command. */
export interface Flag {
  /** Name in kebab case, without dashes. */
  readonly name: string;
  /** One letter that stands for it, without the dash. */
  readonly short?: string;
  /** `switch` takes no value and has a `--no-` form, `one` takes a value, `many` may be repeated. */
  readonly takes: "switch" | "one" | "many";
  /** What the value looks like in the help text, e.g. `<int>`. */
  readonly placeholder?: string;
  /** What it does, in one sentence. */
  readonly description: string;
  /** The default, as shown in the help text. */
  readonly default?: string;
}

/** What was given for one flag. */
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
  /** With `stopAtPositional`: the first argument that is no flag, and all after it, untouched. */
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
  let afterUnknown = -1;
  const add = ({ name, takes }: Flag, typed: string, text: string): void => {
    const earlier = takes === "many" ? uses.get(name)?.texts ?? [] : [];
    uses.set(name, { typed, texts: [...earlier, text] });
  };

  for (const token of tokens) {
    if (token.kind === "option-terminator") continue;
    if (token.kind === "positional") {
      // The text after an unknown flag is most likely its value: one problem is enough.
      if (token.index === afterUnknown) continue;
      if (options.stopAtPositional) return { uses, rest: argv.slice(token.index), problems };
      const flag = byName.get(options.positional ?? "");
      if (flag === undefined) problems.push({ path: token.value, expected: "a flag", got: `'${token.value}'` });
      else add(flag, `--${flag.name}`, token.value);
      continue;
    }
    const typed = argv[token.index]?.split("=", 1)[0] ?? token.rawName;
    const negated = token.name.startsWith("no-") ? byName.get(token.name.slice(3)) : undefined;
    const flag = byName.get(token.name) ?? (negated?.takes === "switch" ? negated : undefined);
    if (flag === undefined) {
      problems.push(unknownFlag(typed, token.name, flags));
      if (token.value === undefined) afterUnknown = token.index + 1;
      continue;
    }
    const text = flag.takes === "switch" ? switchText(flag !== byName.get(token.name), token.value) : token.value;
    const swallowed = token.inlineValue === false && text !== undefined && /^-(?![\d.])./.test(text);
    if (text === undefined || swallowed) {
      problems.push({
        path: typed,
        expected: flag.takes === "switch" ? "no value, or true or false" : `a value ${flag.placeholder ?? ""}`.trim(),
        got: token.value === undefined ? "nothing" : `'${token.value}'`,
      });
      continue;
    }
    add(flag, typed, text);
  }
  return { uses, rest: [], problems };
}

/** Whether the help text was asked for: `--help` or `-h` stands before a `--`. */
export function helpAsked(argv: readonly string[]): boolean {
  const end = argv.indexOf("--");
  return (end < 0 ? argv : argv.slice(0, end)).some((text) => text === "--help" || text === "-h");
}

/** Flags as a help text of at most `width` columns, without a final line break. */
export function describeFlags(flags: readonly Flag[], width: number = 100): string {
  const heads = flags.map((flag) => {
    const short = flag.short === undefined ? "" : `-${flag.short}, `;
    const name = flag.takes === "switch" && flag.default === "true" ? `no-${flag.name}` : flag.name;
    const placeholder = flag.placeholder === undefined ? "" : ` ${flag.placeholder}`;
    return `  ${short}--${name}${placeholder}${flag.takes === "many" ? " ..." : ""}`;
  });
  const column = Math.min(34, Math.max(0, ...heads.map((head) => head.length)) + 2);
  return flags.map((flag, index) => {
    const head = heads[index] ?? "";
    const suffix = flag.default === undefined ? "" : ` (default: ${flag.default})`;
    const lines = wrap(`${flag.description}${suffix}`.trim(), width - column);
    const first = head.length < column ? [head.padEnd(column) + (lines.shift() ?? "")] : [head];
    return [...first, ...lines.map((line) => " ".repeat(column) + line)].map((line) => line.trimEnd()).join("\n");
  }).join("\n");
}

type Token = NonNullable<ReturnType<typeof parseArgs>["tokens"]>[number];

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

function unknownFlag(typed: string, name: string, flags: readonly Flag[]): ConfigProblem {
  const names = flags.flatMap((flag) => flag.takes === "switch" ? [flag.name, `no-${flag.name}`] : [flag.name]);
  return { path: typed, expected: "a known flag", got: `'${typed}'${didYouMean(name, names, "--")}` };
}

function wrap(text: string, width: number): string[] {
  const lines: string[] = [];
  for (const word of text.split(/\s+/)) {
    const last = lines.at(-1);
    if (last !== undefined && last.length + 1 + word.length <= width) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
  }
  return lines;
}
