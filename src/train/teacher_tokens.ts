/**
 * The comparison of a teacher's tokens with those that a run's text is made of: a probability is of a token, so both models must mean
 * the same token by an id.
 *
 * @module
 */
import { readVocabulary, type Tokenizer } from "../data/tokenizer.ts";
import { ConfigError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { pathKind } from "../runtime/files.ts";

/**
 * Refuses a teacher whose tokenizer gives an id to another token than the run's tokenizer does.
 *
 * @param path the teacher as the run names it
 * @returns one line for the log where the teacher's folder has no tokenizer, so that nothing can be compared
 * @throws {ConfigError} naming the first id that differs, and how many do
 */
export async function requireTeacherTokens(
  teacher: CausalLm,
  path: string,
  tokenizer: Tokenizer,
): Promise<string | undefined> {
  const file = teacher.files === undefined ? undefined : `${teacher.files.folder}/tokenizer.json`;
  if (file === undefined || pathKind(file) !== "file") {
    return `The teacher '${path}' has no tokenizer.json: its ids are taken to mean the tokens of '${tokenizer.path}'`;
  }
  const [own, other] = [await tokensOf(tokenizer), byId(await readVocabulary(file))];
  const ids = [...new Set([...own.keys(), ...other.keys()])].filter((id) => own.get(id) !== other.get(id));
  const [first] = ids.toSorted((a, b) => a - b);
  if (first === undefined) return undefined;
  const expected = `a teacher whose ids mean the tokens of '${tokenizer.path}', where ${first} is ${named(own, first)}`;
  const differ = ids.length === 1 ? "1 id differs" : `${ids.length} ids differ`;
  const got = `${named(other, first)} in '${file}', and ${differ} in all: take a teacher of the model's own tokenizer`;
  throw new ConfigError([{ path: "teacher", expected, got }]);
}

/** The token of each id. Ids of a tokenizer without files are bytes, which no file names. */
async function tokensOf({ files, path }: Tokenizer): Promise<ReadonlyMap<number, string>> {
  return files.length === 0 ? new Map() : byId(await readVocabulary(path));
}

function byId(vocabulary: ReadonlyMap<string, number>): ReadonlyMap<number, string> {
  return new Map([...vocabulary].map(([token, id]) => [id, token]));
}

/** A token in quotes, or that there is none. */
function named(tokens: ReadonlyMap<number, string>, id: number): string {
  const token = tokens.get(id);
  return token === undefined ? "no token" : JSON.stringify(token);
}
