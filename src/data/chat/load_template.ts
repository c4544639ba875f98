/**
 * The chat template of a tokenizer's folder, and the special tokens that it may name.
 *
 * @module
 */
import { CheckpointError, ConfigError } from "../../errors.ts";
import { isJsonObject, type JsonObject, kindOf } from "../../json.ts";
import { sha256 } from "../../runtime/checksum.ts";
import { listDirectory, pathKind, readText } from "../../runtime/files.ts";
import { readJson } from "../end_of_text.ts";
import { ChatTemplate } from "./template.ts";

/** Special tokens that templates name. */
const TOKENS = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"] as const;

/** Templates of a folder, by the name that chooses one; most have one, `default`. */
export interface ChatTemplates {
  /**
   * The template for a chat: the one named `tool_use` where there is one and the chat has tools, else `default`, as
   * `transformers` chooses.
   */
  pick(hasTools: boolean): ChatTemplate;
  /** All templates. */
  readonly all: readonly ChatTemplate[];
  /** Changes with what the templates write: hexadecimal. */
  readonly print: string;
}

/**
 * Reads the template beside a tokenizer: `chat_template.jinja` and the files of `additional_chat_templates`, else `chat_template` of
 * `tokenizer_config.json`, a text or a list of named ones.
 *
 * @param tokenizerFile the `tokenizer.json`, beside which the others lie
 * @param chosen a file of Jinja that counts before them
 * @returns undefined where there is none
 * @throws {FileError} if `chosen` cannot be read
 * @throws {CheckpointError} naming a file that is not what its name says
 * @throws {UnsupportedError} if a template does what is not supported
 */
export async function loadChatTemplates(tokenizerFile: string, chosen?: string): Promise<ChatTemplates | undefined> {
  const beside = (name: string): string => tokenizerFile.replace(/[^/]*$/, name);
  const configFile = beside("tokenizer_config.json");
  const config = await readJson(configFile);
  const tokens = tokensOf({ ...await readJson(beside("special_tokens_map.json")), ...present(config) }, configFile);
  const made = (sources: readonly (readonly [name: string, source: string, file: string])[]): ChatTemplates =>
    choice(new Map(sources.map(([name, source, file]) => [name, new ChatTemplate(source, file, tokens)])), configFile);
  if (chosen !== undefined) return made([["default", await readText(chosen), chosen]]);
  const jinja = beside("chat_template.jinja");
  const folder = beside("additional_chat_templates");
  if (pathKind(jinja) === "file") {
    const more = pathKind(folder) === "directory"
      ? listDirectory(folder).filter((name) => name.endsWith(".jinja"))
      : [];
    const files = more.map((name) => [name.replace(/\.jinja$/, ""), `${folder}/${name}`] as const);
    const named = await Promise.all(files.map(async ([name, file]) => [name, await readText(file), file] as const));
    return made([["default", await readText(jinja), jinja], ...named]);
  }
  const value = config["chat_template"];
  if (value === undefined || value === null) return undefined;
  if (typeof value === "string") return made([["default", value, configFile]]);
  if (Array.isArray(value)) return made(value.map((entry: unknown) => namedTemplate(entry, configFile)));
  throw new CheckpointError(configFile, `chat_template must be a text or a list of named ones, got ${kindOf(value)}`);
}

function choice(templates: ReadonlyMap<string, ChatTemplate>, file: string): ChatTemplates {
  const usual = templates.get("default");
  if (usual !== undefined) {
    return {
      all: [...templates.values()],
      pick: (hasTools) => (hasTools ? templates.get("tool_use") : undefined) ?? usual,
      print: sha256([JSON.stringify(Array.from(templates, ([name, one]) => [name, one.source, one.tokens]))]),
    };
  }
  const names = [...templates.keys()].map((name) => JSON.stringify(name)).join(", ");
  const remedy = "write the one that you mean to a file, and name that by '--chat-template' (chatTemplate)";
  throw new CheckpointError(file, `chat_template must have one named "default", got ${names || "none"}: ${remedy}`);
}

function namedTemplate(entry: unknown, file: string): readonly [string, string, string] {
  const { name, template } = isJsonObject(entry) ? entry : {};
  if (typeof name === "string" && typeof template === "string") return [name, template, file];
  throw new CheckpointError(file, `chat_template must have "name" and "template" in each entry, got ${kindOf(entry)}`);
}

/** The keys that have values. */
function present(config: JsonObject): JsonObject {
  return Object.fromEntries(Object.entries(config).filter(([, value]) => value !== null && value !== undefined));
}

function tokensOf(config: JsonObject, file: string): Record<string, string> {
  const tokens: Record<string, string> = {};
  for (const name of TOKENS) {
    const value = config[name];
    const content = isJsonObject(value) ? value["content"] : value;
    if (content === undefined || content === null) continue;
    if (typeof content !== "string") {
      throw new CheckpointError(file, `${name} must be a string or have one as content, got ${kindOf(value)}`);
    }
    tokens[name] = content;
  }
  return tokens;
}

/** The error where chats are to be trained on and no template is there. */
export function noTemplate(tokenizer: string): ConfigError {
  const expected =
    "a chat template: chat_template.jinja or 'chat_template' in tokenizer_config.json beside the tokenizer, or a " +
    "file of Jinja named by '--chat-template'";
  return new ConfigError([{
    path: "chatTemplate",
    expected,
    got: `none beside '${tokenizer}', and chats to train on`,
  }]);
}
