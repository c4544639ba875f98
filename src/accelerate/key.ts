/**
 * A key of another program's configuration: its values, and its effect here. The tables of keys decide how files are read, what
 * `fullyshard config` asks, and what the page of keys shows.
 *
 * @module
 */
import * as z from "zod";
import type { ConfigProblem } from "../errors.ts";

/** The values that a key may hold. */
export interface KeyKind<Value> {
  readonly schema: z.ZodType<Value>;
  /** The values, as the page of keys shows them. */
  readonly shown: string;
}

/** The question by which `fullyshard config` asks for a key. */
export interface Question {
  readonly text: string;
  /** The answer where none is given. */
  readonly usual: string;
}

/** The facts about a key besides its effect here. */
export interface KeyFacts {
  /** FSDP1's: FSDP2 has another name for it, or none. */
  readonly isFsdp1?: boolean;
  readonly question?: Question;
}

/** A key. */
export interface ForeignKey extends KeyFacts {
  /** The key in snake_case; a key of `fsdp_config` stands without `fsdp_`. */
  readonly name: string;
  readonly shown: string;
  /** The key's effect here. */
  readonly here: string;
  /** Checks a value and takes it. */
  readonly read: (value: unknown, to: KeyTranslation) => void;
}

/** A key as the file spells it, and its place. */
export interface WrittenKey {
  readonly typed: string;
  readonly where: string | undefined;
}

/** The modules that are wrapped: three keys that make one plan. */
export interface Wrapping {
  policy?: string;
  classes?: readonly string[];
  minNumParams?: number;
}

/** The start of ranks; the launcher chooses values that are not given. */
export interface LaunchedRanks {
  /** The number of ranks. */
  count?: number;
  /** Address of the host of rank 0. */
  masterAddr?: string;
  /** Port by which they meet. */
  masterPort?: number;
}

/** The translation of the keys that were read so far. */
export class KeyTranslation {
  /** Values of the trainer's own keys. */
  readonly values: Record<string, unknown> = {};
  /** The place of each value in its file, by key. */
  readonly places: Map<string, string> = new Map();
  /** Remarks for the user: FSDP1's names with FSDP2's, and keys without an effect here. */
  readonly notices: string[] = [];
  readonly problems: ConfigProblem[] = [];
  readonly wrapping: Wrapping = {};
  /** Replicas, ranks that share each, ranks that share rows by either way, and ranks that compute with parts of the same weights. */
  readonly axes: {
    replicate?: number;
    shard?: number;
    context?: number;
    commStrategy?: "allgather" | "ring";
    sequence?: number;
    tensor?: number;
  } = {};
  /** The start of ranks. */
  readonly ranks: LaunchedRanks = {};
  /** `ep_implementation`, if it was given. */
  experts?: string;
  /** Keys that were read, by their names. */
  readonly said: Map<string, WrittenKey> = new Map();
  /** The key that is being read. */
  key: WrittenKey = { typed: "", where: undefined };

  /** Sets a key of the trainer's. */
  set(name: string, value: unknown): void {
    this.values[name] = value;
    if (this.key.where !== undefined) this.places.set(name, this.key.where);
  }

  /** Tells something of the key that is being read. */
  notice(text: string): void {
    this.notices.push(`${this.key.typed}: ${text}`);
  }

  /** Refuses the key that is being read. */
  refuse(expected: string, got: string): void {
    const { typed: path, where } = this.key;
    this.problems.push({ path, expected, got, ...where === undefined ? {} : { where } });
  }
}

/** Declares a key. */
export function foreignKey<Value>(
  name: string,
  { schema, shown }: KeyKind<Value>,
  here: string,
  take: (value: Value, to: KeyTranslation) => void,
  facts: KeyFacts = {},
): ForeignKey {
  const read = (value: unknown, to: KeyTranslation): void => {
    const result = schema.safeParse(value);
    if (result.success) take(result.data, to);
    else to.refuse(shown, typeof value === "string" ? `'${value}'` : JSON.stringify(value) ?? "nothing");
  };
  return { name, shown, here, read, ...facts };
}

/** A key that may be there as long as it asks for nothing. */
export function refusedKey(name: string, why: string, nothing: readonly unknown[] = []): ForeignKey {
  const isNothing = (value: unknown): boolean =>
    value == null || value === false || value === "no" || nothing.includes(value) ||
    (typeof value === "object" && Object.values(value).every((part) => part === null));
  return foreignKey(
    name,
    { schema: z.unknown(), shown: nothing[0] === undefined ? "nothing" : String(nothing[0]) },
    why,
    (value, to) => {
      if (!isNothing(value)) to.refuse(`nothing, as ${why}`, JSON.stringify(value) ?? "nothing");
    },
  );
}

/** A key that has nothing to do here, whatever it says. */
export function idleKey<Value>(name: string, kind: KeyKind<Value>, why: string, facts: KeyFacts = {}): ForeignKey {
  return foreignKey(name, kind, why, (_, to) => facts.isFsdp1 === true && to.notice(why), facts);
}

const YES: readonly string[] = ["true", "yes", "y", "t", "on", "1"];
const NO: readonly string[] = ["false", "no", "n", "f", "off", "0"];

/** True or false, in the words that Accelerate takes for them too. */
export const bool: KeyKind<boolean> = {
  schema: z.union([
    z.boolean(),
    z.string().refine((text) => [...YES, ...NO].includes(text.toLowerCase())).transform((text) =>
      YES.includes(text.toLowerCase())
    ),
  ]),
  shown: "true or false",
};

/** A number from `least`. */
export function whole(least: number): KeyKind<number> {
  const text = z.string().regex(/^\d+(e\d+)?$/).transform(Number);
  return { schema: z.union([z.number(), text]).pipe(z.int().min(least)), shown: `a number from ${least}` };
}

/** Any text. */
export const text: KeyKind<string> = { schema: z.string(), shown: "a text" };

/** One of some words, in capitals or not; of `numbered` ones also their number from 1. */
export function choice<const Words extends readonly string[]>(
  words: Words,
  numbered: boolean = false,
): KeyKind<Words[number]> {
  const schema = z.union([z.string(), z.int(), z.boolean()]).transform((given) => {
    const word = String(given);
    return words.find((one, i) => one.toLowerCase() === word.toLowerCase() || (numbered && String(i + 1) === word)) ??
      word;
  }).pipe(z.enum(words));
  return { schema, shown: words.join(", ") };
}

/** Names in a list, or with commas between them. */
export const names: KeyKind<readonly string[]> = {
  schema: z.union([z.null(), z.string(), z.array(z.string())]).transform((given) => {
    const list = typeof given === "string" ? given.split(",") : given ?? [];
    return list.map((name) => name.trim()).filter((name) => name !== "");
  }),
  shown: "names, in a list or with commas",
};
