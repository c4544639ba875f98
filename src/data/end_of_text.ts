/**
 * The end-of-text token of a tokenizer's folder, which any of several files may name.
 *
 * @module
 */
import { eosIdsOf } from "../eos_ids.ts";
import { CheckpointError } from "../errors.ts";
import { isJsonObject, type JsonObject, parseJsonObject } from "../json.ts";
import { pathKind, readBytes } from "../runtime/files.ts";
import { brief, TOKENIZER_DEPTH } from "./tokenizers/part.ts";
import type { TokenizerPipeline } from "./tokenizers/pipeline.ts";

/** The usual names of the end of a text, tried where a model's files do not state one. */
const USUAL_NAMES = ["<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|eos|>", "[EOS]", "<｜end▁of▁sentence｜>"];

/** The places that are searched for it, as an error names them. */
export const EOS_PLACES: string =
  "eos_token in tokenizer_config.json and special_tokens_map.json, eos_token_id in generation_config.json and " +
  `config.json, and the special added tokens ${USUAL_NAMES.join(" ")}`;

/** The token that was found. */
export interface EndOfText {
  /** Its id; undefined where no file names one. */
  readonly id: number | undefined;
  /** One line where it was found in an unusual place, or files disagree. */
  readonly note: string | undefined;
}

/** The end-of-text ids that a file states. */
interface StatedIds {
  readonly file: string;
  readonly ids: readonly number[];
}

/**
 * Finds the token that ends documents. The first place that names one counts:
 *
 * 1. `eos_token` of `tokenizer_config.json`, a string or an object with `content`;
 * 2. `eos_token` of `special_tokens_map.json`; where both name one, this counts if the first has no `added_tokens_decoder`, as
 *    in `transformers`;
 * 3. the first id of `eos_token_id` of `generation_config.json`, then of `config.json`;
 * 4. a special added token with a usual name, if there is just one.
 *
 * An empty string, null or a missing key says nothing.
 *
 * @param file the `tokenizer.json`, beside which the others lie
 * @param config the contents of `tokenizer_config.json`
 * @param chosen the token's text, which counts before all files
 * @throws {CheckpointError} naming a file whose token or id the tokenizer does not have
 */
export async function findEndOfText(
  file: string,
  tokenizer: TokenizerPipeline,
  config: JsonObject,
  chosen?: string,
): Promise<EndOfText> {
  const beside = (name: string): string => file.replace(/[^/]*$/, name);
  if (chosen !== undefined) return { id: idOf(chosen, tokenizer, file, "the end-of-text token"), note: undefined };
  const named = statementOf(config, beside("tokenizer_config.json"), tokenizer, file);
  const mapFile = beside("special_tokens_map.json");
  const mapped = statementOf(await readJson(mapFile), mapFile, tokenizer, file);
  const hasDecoder = isJsonObject(config["added_tokens_decoder"]);
  const ofTokenizer = (hasDecoder ? [named, mapped] : [mapped, named]).filter((one) => one !== undefined);
  const ofModel: StatedIds[] = [];
  for (const other of ["generation_config.json", "config.json"].map(beside)) {
    const ids = eosIdsOf(await readJson(other), other);
    if (ids.length > 0) ofModel.push({ file: other, ids });
  }
  const [first, ...others] = [...ofTokenizer, ...ofModel];
  if (first === undefined) return ofAddedTokens(file, tokenizer);
  const [id] = first.ids;
  const token = id === undefined ? undefined : tokenizer.tokenOf(id);
  if (token === undefined) {
    throw new CheckpointError(
      first.file,
      `eos_token_id: expected an id of ${file}, got ${id}; set --eos-token (eosToken)`,
    );
  }
  const show = (one: StatedIds): string =>
    `${one.file} names ${one.ids.join(", ")}${ofModel.includes(one) ? ", which ends what is generated" : ""}`;
  const disagree = others.filter(({ ids }) => id === undefined || !ids.includes(id));
  // Several ids end what is generated, but only one can end documents.
  const isChoice = ofTokenizer.length === 0 && (first.ids.length > 1 || disagree.length > 0);
  if (disagree.length === 0 && !isChoice) return { id, note: undefined };
  const also = disagree.length === 0 ? `${show(first)}` : disagree.map(show).join(", and ");
  return { id, note: `Documents end with ${JSON.stringify(token)} (${id}), by ${first.file}; ${also}` };
}

function ofAddedTokens(file: string, { added }: TokenizerPipeline): EndOfText {
  const usual = added.filter(({ special, content }) => special && USUAL_NAMES.includes(content));
  const [only] = usual;
  if (only === undefined || usual.length > 1) return { id: undefined, note: undefined };
  const note = `Documents end with ${
    JSON.stringify(only.content)
  } (${only.id}), an added token of ${file}: no file names an end of text`;
  return { id: only.id, note };
}

function statementOf(json: JsonObject, file: string, tokenizer: TokenizerPipeline, of: string): StatedIds | undefined {
  const value = json["eos_token"];
  if (value === undefined || value === null || value === "") return undefined;
  const content = isJsonObject(value) ? value["content"] : value;
  if (typeof content !== "string") {
    throw new CheckpointError(file, `eos_token must be a string or have one as content, got ${brief(value)}`);
  }
  return content === "" ? undefined : { file, ids: [idOf(content, tokenizer, of, "eos_token", file)] };
}

function idOf(token: string, { vocab }: TokenizerPipeline, of: string, what: string, file: string = of): number {
  const id = vocab.get(token);
  if (id !== undefined) return id;
  throw new CheckpointError(file, `${what} must be in the vocabulary of ${of}, got ${brief(token)}`);
}

/** The object of an optional file of a tokenizer's folder; empty if it is not there. @throws {CheckpointError} if it is damaged */
export async function readJson(file: string): Promise<JsonObject> {
  if (pathKind(file) === "none") return {};
  return parseJsonObject(await readBytes(file), { file, what: "file", maxDepth: TOKENIZER_DEPTH });
}
