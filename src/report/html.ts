/**
 * HTML by a template tag that escapes what is put in, so that a text can only be text.
 *
 * @module
 */
import { shown } from "../words.ts";

/** Markup that is safe to put into a page. */
export class Html {
  /** Text of the markup. */
  readonly text: string;

  /** Use {@link safe}: the text is not escaped. */
  constructor(text: string) {
    this.text = text;
  }
}

/** A value in a template: markup as it is, anything else escaped; a list's values in order, nothing for undefined. */
export type HtmlValue = Html | string | number | undefined | readonly HtmlValue[];

/** Text in which nothing is markup, in elements and in quoted attributes; control characters become visible. */
export function escaped(text: string): string {
  return shown(text.toWellFormed()).replace(/[&<>"'`]/g, (letter) => `&#${letter.charCodeAt(0)};`);
}

/** Markup whose values are escaped. Attributes must be quoted, and none may be a script or an address. */
export function safe(parts: TemplateStringsArray, ...values: readonly HtmlValue[]): Html {
  return new Html(parts.reduce((text, part, i) => text + textOf(values[i - 1]) + part));
}

/** JSON as the text of a `script` element of type `application/json`, which nothing in it can end. */
export function embeddedJson(value: unknown): Html {
  const escape = (letter: string): string => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return new Html(JSON.stringify(value).replace(/[<>&\u200e\u200f\u2028-\u202e\u2066-\u2069]/g, escape));
}

function textOf(value: HtmlValue): string {
  if (value === undefined) return "";
  if (value instanceof Html) return value.text;
  if (typeof value === "number") return String(value);
  return typeof value === "string" ? escaped(value) : value.map(textOf).join("");
}
