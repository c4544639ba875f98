/**
 * The index of the search, made when the site is built and loaded by a page when someone searches.
 *
 * @module
 */
import MiniSearch from "minisearch";
import { type IndexedPart, SEARCH_OPTIONS } from "./page/search_options.ts";

/** A part of a page that is found by itself. */
export type SearchPart = Omit<IndexedPart, "id" | "begin">;

/** Letters of a part that are shown below its heading. */
const SHOWN_LETTERS = 110;

/** The index as JSON. */
export function searchIndex(parts: readonly SearchPart[]): string {
  const index = new MiniSearch<IndexedPart>(SEARCH_OPTIONS);
  index.addAll(parts.map((part, id) => ({ ...part, id, begin: beginOf(part.text) })));
  return JSON.stringify(index);
}

function beginOf(text: string): string {
  if (text.length <= SHOWN_LETTERS) return text;
  return `${text.slice(0, SHOWN_LETTERS).replace(/\s\S*$/, "")} …`;
}
