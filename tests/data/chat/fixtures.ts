/** Templates, chats and tokenizers of `tests/fixtures/chat`, and what transformers and TRL made of them. @module */
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { z } from "zod";
import { type ChatTemplates, loadChatTemplates } from "../../../src/data/chat/load_template.ts";
import { loadTokenizer, type Tokenizer } from "../../../src/data/tokenizer.ts";
import { InternalError } from "../../../src/errors.ts";
import type { JsonObject } from "../../../src/json.ts";

const FOLDER = new URL("../../fixtures/chat/", import.meta.url);

/** Path of a file of the fixtures. */
export function fixture(name: string): string {
  return fileURLToPath(new URL(name, FOLDER));
}

const json = (name: string): unknown => JSON.parse(readFileSync(fixture(name), "utf8"));
const row = z.record(z.string(), z.unknown());

/** The text that transformers made of a chat. */
interface Case {
  readonly template: string;
  readonly tokenizer: string;
  /** Its number among the chats. */
  readonly chat: number;
  readonly addGenerationPrompt: boolean;
  readonly text?: string | undefined;
  readonly ids?: readonly number[] | undefined;
  /** 1 for each token of an assistant; null where the template rewrites turns. */
  readonly mask?: readonly number[] | null | undefined;
  readonly error?: string | undefined;
}

/** The ids that TRL made of rows. */
interface TrlCase {
  readonly name: string;
  readonly template: string;
  readonly lossOn: "assistant" | "completion" | "all";
  readonly maxLength: number;
  readonly rows: readonly JsonObject[];
  readonly expected: readonly { readonly ids: readonly number[]; readonly labels: readonly number[] }[];
}

/** Chats, and what transformers made of them. */
export const EXPECTED: { readonly chats: readonly JsonObject[]; readonly cases: readonly Case[] } = z.object({
  chats: z.array(row),
  cases: z.array(z.object({
    template: z.string(),
    tokenizer: z.string(),
    chat: z.number(),
    addGenerationPrompt: z.boolean(),
    text: z.string().optional(),
    ids: z.array(z.number()).optional(),
    mask: z.array(z.number()).nullable().optional(),
    error: z.string().optional(),
  })),
}).parse(json("expected.json"));

/** Rows, and what TRL made of them. */
export const TRL: readonly TrlCase[] = z.array(z.object({
  name: z.string(),
  template: z.string(),
  lossOn: z.enum(["assistant", "completion", "all"]),
  maxLength: z.number(),
  rows: z.array(row),
  expected: z.array(z.object({ ids: z.array(z.number()), labels: z.array(z.number()) })),
})).parse(json("trl.json"));

/** Templates of a line, and what transformers makes of the first chat with them. */
export const SNIPPETS: readonly { readonly source: string; readonly text: string }[] = z.array(
  z.object({ source: z.string(), text: z.string() }),
).parse(json("snippets.json"));

/** A tokenizer with a template. */
export async function openTemplate(
  tokenizer: string,
  template: string,
): Promise<{ readonly tokenizer: Tokenizer; readonly templates: ChatTemplates }> {
  const loaded = await loadTokenizer(fixture(tokenizer));
  const templates = await loadChatTemplates(loaded.path, fixture(`templates/${template}.jinja`));
  if (templates === undefined) throw new InternalError("a template that is named is there");
  return { tokenizer: loaded, templates };
}
