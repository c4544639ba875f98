/**
 * Parts of a `tokenizer.json`, read strictly: a type, key or value that is not known to give Python's ids is refused by
 * name, since an option that is overlooked gives other ids without a word.
 *
 * @module
 */
import { CheckpointError } from "../../errors.ts";
import { isJsonObject, type JsonObject } from "../../json.ts";

/** The greatest depth of nested objects and arrays in a tokenizer's files. */
export const TOKENIZER_DEPTH = 32;

/** The remedy for a tokenizer that cannot be read. */
const REMEDY =
  "tokenize the text in Python, or convert the tokenizer to one of the kinds that docs/tokenizers.md lists";

/** An object of a `tokenizer.json` with the place where it stands. */
export class JsonPart {
  /** The file. */
  readonly file: string;
  /** The keys that lead to it, e.g. `pre_tokenizer.pretokenizers[1]`; empty for the file's own object. */
  readonly path: string;
  readonly #values: JsonObject;
  readonly #read = new Set<string>(["type"]);

  /** @throws {CheckpointError} if the value is not an object */
  constructor(value: unknown, file: string, path: string) {
    if (!isJsonObject(value)) {
      throw new CheckpointError(file, `${path}: expected an object, got ${brief(value)}`);
    }
    this.#values = value;
    this.file = file;
    this.path = path;
  }

  /** The component's type. */
  get type(): unknown {
    return this.#values["type"];
  }

  /** The raw value of a key; null where it is missing. */
  raw(key: string): unknown {
    this.#read.add(key);
    return this.#values[key] ?? null;
  }

  /** True or false; `otherwise` where the key is missing or null. Without it the key must be there. */
  boolean(key: string, otherwise?: boolean): boolean {
    const value = this.raw(key) ?? otherwise;
    return typeof value === "boolean" ? value : this.fail(key, "true or false", value);
  }

  /** A whole number of 0 or more. */
  count(key: string, otherwise?: number): number {
    const value = this.raw(key) ?? otherwise;
    return typeof value === "number" && Number.isSafeInteger(value) && value >= 0
      ? value
      : this.fail(key, "a whole number", value);
  }

  /** A string, which may be empty. */
  string(key: string, otherwise?: string): string {
    const value = this.raw(key) ?? otherwise;
    return typeof value === "string" && value.isWellFormed() ? value : this.fail(key, "a string", value);
  }

  /** A string of one character. */
  character(key: string): string {
    const value = this.string(key);
    return [...value].length === 1 ? value : this.fail(key, "one character", value);
  }

  /** One of some strings. */
  oneOf<const T extends string>(key: string, choices: readonly T[], otherwise?: T): T {
    const value = this.raw(key) ?? otherwise;
    return choices.find((choice) => choice === value) ?? this.fail(key, choices.join(", "), value);
  }

  /** A list of any values. */
  list(key: string): readonly unknown[] {
    const value = this.raw(key);
    return Array.isArray(value) ? value : this.fail(key, "a list", value);
  }

  /** The objects of a list, each a part. */
  parts(key: string): readonly JsonPart[] {
    return this.list(key).map((value, i) => new JsonPart(value, this.file, `${this.#place(key)}[${i}]`));
  }

  #place(key: string): string {
    return this.path === "" ? key : `${this.path}.${key}`;
  }

  /** All keys with their objects. */
  entries(): readonly (readonly [string, JsonPart])[] {
    return Object.entries(this.#values).map(([key, value]) => [key, new JsonPart(value, this.file, this.#place(key))]);
  }

  /** Refuses keys that were not read and hold something. */
  close(): void {
    for (const [key, value] of Object.entries(this.#values)) {
      if (this.#read.has(key) || value === null) continue;
      throw new CheckpointError(
        this.file,
        `${this.#place(key)}: this key of ${brief(this.type)} is not supported, got ${brief(value)}; ${REMEDY}`,
      );
    }
  }

  /** Refuses the value of a key. */
  fail(key: string, expected: string, value: unknown = this.raw(key)): never {
    throw new CheckpointError(this.file, `${this.#place(key)}: expected ${expected}, got ${brief(value)}`);
  }

  /** Refuses what is valid but would give other ids than Python's. */
  refuse(key: string, why: string): never {
    const got = brief(this.#values[key] ?? null);
    throw new CheckpointError(this.file, `${this.#place(key)}: ${got} is not supported: ${why}; ${REMEDY}`);
  }

  /** Refuses the component's type. */
  refuseType(known: readonly string[]): never {
    const expected = `expected ${known.join(", ")}`;
    throw new CheckpointError(this.file, `${this.#place("type")}: ${expected}, got ${brief(this.type)}; ${REMEDY}`);
  }
}

/** The beginning of a value as JSON. */
export function brief(value: unknown): string {
  const text = JSON.stringify(value) ?? "nothing";
  return text.length > 80 ? `${text.slice(0, 77)}...` : text;
}
