/**
 * A tokenizer's files as they lie in a model's folder, as far as GGUF has keys for what they say.
 *
 * @module
 */
import * as z from "zod";
import { CheckpointError, UnsupportedError } from "../../errors.ts";
import { isJsonObject, type JsonObject, parseJsonObject } from "../../json.ts";
import { preTokenizerSchema, type PreTokenizerStep } from "./pre_tokenizers.ts";

/** The greatest depth of nested objects in these files. */
const MAX_DEPTH = 64;

const merge = z.union([z.string(), z.tuple([z.string(), z.string()])]);
const typed = z.looseObject({ type: z.string() });

const schema = z.looseObject({
  added_tokens: z.array(z.looseObject({
    id: z.int().nonnegative(),
    content: z.string(),
    special: z.boolean(),
    lstrip: z.boolean().optional(),
    rstrip: z.boolean().optional(),
    single_word: z.boolean().optional(),
  })).nullish(),
  normalizer: z.looseObject({ type: z.string(), normalizers: z.array(typed).optional() }).nullish(),
  pre_tokenizer: preTokenizerSchema,
  post_processor: z.looseObject({ type: z.string(), processors: z.array(typed).optional() }).nullish(),
  model: z.looseObject({
    type: z.string().optional(),
    vocab: z.unknown(),
    merges: z.array(merge).optional(),
    unk_token: z.string().nullish(),
    byte_fallback: z.boolean().nullish(),
    ignore_merges: z.boolean().nullish(),
  }),
});

/** A part of `tokenizer.json` with its own keys. */
export interface TypedPart {
  readonly [key: string]: unknown;
  readonly type: string;
}

/** A token beside the model's vocabulary. */
export interface GgufAddedToken {
  readonly id: number;
  readonly content: string;
  readonly special: boolean;
  /** True if a match includes the blanks before it; `rstrip`: after it. */
  readonly lstrip?: boolean | undefined;
  readonly rstrip?: boolean | undefined;
  /** True if it is found only between words. */
  readonly single_word?: boolean | undefined;
}

/** The parsed files of a tokenizer. */
export interface TokenizerFiles {
  /** The name of `tokenizer.json`, for messages. */
  readonly file: string;
  /** Ids by token. */
  readonly vocab: ReadonlyMap<string, number>;
  readonly added: readonly GgufAddedToken[];
  /** Pairs, first those that are merged first. */
  readonly merges: readonly (readonly [string, string])[];
  readonly unkToken: string | undefined;
  readonly byteFallback: boolean;
  readonly ignoresMerges: boolean;
  /** Steps on full texts, in order. */
  readonly normalizers: readonly TypedPart[];
  readonly preTokenizer: PreTokenizerStep | undefined;
  readonly postProcessors: readonly TypedPart[];
  /** `tokenizer_config.json`, where there is one. */
  readonly config: JsonObject;
  /** Chat templates by name; the first one is `default`. */
  readonly chatTemplates: ReadonlyMap<string, string>;
}

/**
 * Reads what a folder has of a tokenizer.
 *
 * @param files contents by name
 * @param where the folder, for messages
 * @returns undefined if there is no `tokenizer.json`
 * @throws {CheckpointError} if a file is damaged
 * @throws {UnsupportedError} for models that are no byte pair encoding
 */
export function readTokenizerFiles(
  files: ReadonlyMap<string, Uint8Array>,
  where: string,
): TokenizerFiles | undefined {
  const bytes = files.get("tokenizer.json");
  if (bytes === undefined) return undefined;
  const file = `${where}/tokenizer.json`;
  const parsed = schema.safeParse(parseJsonObject(bytes, { file, what: "tokenizer", maxDepth: MAX_DEPTH }));
  if (!parsed.success) throw new CheckpointError(file, z.prettifyError(parsed.error));
  const { model, added_tokens: added, normalizer, pre_tokenizer: preTokenizer, post_processor: post } = parsed.data;
  if (model.type !== "BPE" && model.type !== undefined) {
    throw new UnsupportedError(
      `Cannot write the tokenizer of '${file}' into GGUF: its model is ${model.type}, and only BPE is supported`,
    );
  }
  const vocab = z.record(z.string(), z.int().nonnegative()).safeParse(model.vocab);
  if (!vocab.success) throw new CheckpointError(file, `model.vocab: ${z.prettifyError(vocab.error)}`);
  const config = jsonOf(files, "tokenizer_config.json", where) ?? {};
  return {
    file,
    vocab: new Map(Object.entries(vocab.data)),
    added: added ?? [],
    merges: (model.merges ?? []).map((one) => pairOf(one, file)),
    unkToken: model.unk_token ?? undefined,
    byteFallback: model.byte_fallback ?? false,
    ignoresMerges: model.ignore_merges ?? false,
    normalizers: normalizer == null ? [] : normalizer.normalizers ?? [normalizer],
    preTokenizer: preTokenizer ?? undefined,
    postProcessors: post == null ? [] : post.processors ?? [post],
    config,
    chatTemplates: chatTemplatesOf(files, config),
  };
}

function jsonOf(files: ReadonlyMap<string, Uint8Array>, name: string, where: string): JsonObject | undefined {
  const bytes = files.get(name);
  if (bytes === undefined) return undefined;
  return parseJsonObject(bytes, { file: `${where}/${name}`, what: "tokenizer's config", maxDepth: MAX_DEPTH });
}

function pairOf(merge: string | readonly [string, string], file: string): readonly [string, string] {
  if (typeof merge !== "string") return merge;
  const space = merge.indexOf(" ");
  if (space > 0) return [merge.slice(0, space), merge.slice(space + 1)];
  throw new CheckpointError(file, `A merge must be two tokens with a space between them, got '${merge}'`);
}

/** `chat_template.jinja` wins over the config's key, as in transformers. */
function chatTemplatesOf(files: ReadonlyMap<string, Uint8Array>, config: JsonObject): ReadonlyMap<string, string> {
  const templates = new Map<string, string>();
  const given = config["chat_template"];
  if (typeof given === "string") templates.set("default", given);
  for (const one of Array.isArray(given) ? given : []) {
    if (!isJsonObject(one)) continue;
    const { name, template } = one;
    if (typeof name === "string" && typeof template === "string") templates.set(name, template);
  }
  for (const [path, bytes] of files) {
    const name = path === "chat_template.jinja"
      ? "default"
      : /^additional_chat_templates\/(?<name>.+)\.jinja$/.exec(path)?.groups?.["name"];
    if (name !== undefined) templates.set(name, new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes));
  }
  return templates;
}
