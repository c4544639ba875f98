/**
 * Special tokens of a tokenizer, as GGUF names them: their ids, and which of them are put around each text.
 *
 * @module
 */
import { UnsupportedError } from "../../errors.ts";
import { isJsonObject } from "../../json.ts";
import type { TokenizerContext } from "./tokenizer.ts";
import type { TokenizerFiles } from "./tokenizer_files.ts";

/** GGUF's names of special tokens, each with the name in `tokenizer_config.json` and `config.json`. */
const NAMES = {
  bos: "bos",
  eos: "eos",
  unknown: "unk",
  seperator: "sep",
  padding: "pad",
  mask: "mask",
} as const;

/** llama.cpp's names of further tokens at which it stops. */
const FURTHER_ENDS = ["eot", "eom"] as const;

/** Ids by GGUF's name. The first id that ends texts is `eos`, further ones are `eot` and `eom`. */
export function specialIds(
  files: TokenizerFiles,
  { vocabSize, eosIds, hfConfig }: TokenizerContext,
): Map<string, number> {
  const added = new Map(files.added.map(({ content, id }) => [content, id]));
  const ids = new Map<string, number>();
  for (const [name, key] of Object.entries(NAMES)) {
    const text = tokenText(files.config[`${key}_token`]);
    const named = text === undefined ? undefined : added.get(text) ?? files.vocab.get(text);
    const id = named ?? idOf(hfConfig[`${key}_token_id`]) ??
      (key === "unk" && files.unkToken !== undefined ? files.vocab.get(files.unkToken) : undefined);
    if (id !== undefined && id < vocabSize) ids.set(name, id);
  }
  const ends = eosIds.filter((id) => id !== ids.get("eos"));
  if (!ids.has("eos")) {
    const first = ends.shift();
    if (first !== undefined) ids.set("eos", first);
  }
  if (ends.length > FURTHER_ENDS.length) {
    throw new UnsupportedError(
      `Cannot write ${eosIds.length} ids that end texts (eos_token_id ${
        eosIds.join(", ")
      }) into GGUF: it has keys for ` +
        `three of them, eos, eot and eom`,
    );
  }
  for (const [i, id] of ends.entries()) ids.set(FURTHER_ENDS[i] ?? "eot", id);
  return ids;
}

/**
 * Tells which tokens are put before and after each text.
 *
 * @throws {UnsupportedError} for others than the beginning and the end
 */
export function addsOf(
  files: TokenizerFiles,
  ids: Map<string, number>,
): { readonly bos: boolean; readonly eos: boolean } {
  const single = files.postProcessors.find(({ type }) => type === "TemplateProcessing")?.["single"];
  const parts = Array.isArray(single) ? single : [];
  const place = parts.findIndex((one) => isJsonObject(one) && "Sequence" in one);
  const [before, after] = [idsIn(files, parts.slice(0, Math.max(0, place))), idsIn(files, parts.slice(place + 1))];
  const first = before[0];
  if (first !== undefined && !ids.has("bos")) ids.set("bos", first);
  const last = after[0];
  if (last !== undefined && !ids.has("eos")) ids.set("eos", last);
  const isOdd = before.length > 1 || after.length > 1 || (first !== undefined && first !== ids.get("bos")) ||
    (last !== undefined && last !== ids.get("eos"));
  if (isOdd) {
    throw new UnsupportedError(
      `Cannot write the tokenizer of '${files.file}' into GGUF: it puts tokens around texts that are not bos and eos: ` +
        JSON.stringify(single),
    );
  }
  const { add_bos_token: addBos, add_eos_token: addEos } = files.config;
  return {
    bos: ids.has("bos") && (typeof addBos === "boolean" ? addBos : first !== undefined),
    eos: ids.has("eos") && (typeof addEos === "boolean" ? addEos : last !== undefined),
  };
}

function idsIn({ vocab, added }: TokenizerFiles, parts: readonly unknown[]): readonly number[] {
  return parts.flatMap((part) => {
    const special = isJsonObject(part) ? part["SpecialToken"] : undefined;
    const text = isJsonObject(special) ? special["id"] : undefined;
    if (typeof text !== "string") return [];
    const id = added.find(({ content }) => content === text)?.id ?? vocab.get(text);
    return id === undefined ? [] : [id];
  });
}

function tokenText(given: unknown): string | undefined {
  const text = isJsonObject(given) ? given["content"] : given;
  return typeof text === "string" ? text : undefined;
}

function idOf(given: unknown): number | undefined {
  return typeof given === "number" && Number.isSafeInteger(given) && given >= 0 ? given : undefined;
}
