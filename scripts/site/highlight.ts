/**
 * Code as markup whose words have classes, made when the site is built.
 *
 * @module
 */
import highlighter from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import json from "highlight.js/lib/languages/json";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import typescript from "highlight.js/lib/languages/typescript";
import yaml from "highlight.js/lib/languages/yaml";
import { escaped, Html } from "../../src/report/html.ts";

/** Languages that are colored, by the names that documents give them. */
const LANGUAGES = {
  ...{ ts: typescript, js: typescript, mjs: typescript, sh: bash, json, jsonl: json, yaml, python, py: python },
  ...{ rust, rs: rust },
};
/** Languages that are shown as they are. */
const PLAIN = new Set(["", "text", "jinja", "html", "dockerfile", "ini"]);

for (const [name, language] of Object.entries(LANGUAGES)) highlighter.registerLanguage(name, language);

/** Colors code. @throws {Error} for a language that is neither colored nor known to be plain */
export function highlight(code: string, language: string): Html {
  if (Object.hasOwn(LANGUAGES, language)) {
    return new Html(highlighter.highlight(code, { language, ignoreIllegals: true }).value);
  }
  if (PLAIN.has(language)) return new Html(escaped(code));
  throw new Error(`expected a language of ${Object.keys(LANGUAGES).join(", ")} or plain text, got '${language}'`);
}
