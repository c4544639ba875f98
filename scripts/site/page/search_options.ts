/**
 * How texts become words of the search: the same when the index is made and when a page asks it.
 *
 * @module
 */

import type { Options } from "minisearch";

/** A part of a page, as the index holds it. */
export interface IndexedPart {
  readonly id: number;
  /** From the root of the site. */
  readonly address: string;
  readonly page: string;
  /** Empty for the begin of a page. */
  readonly heading: string;
  readonly text: string;
  /** The first words of the text. */
  readonly begin: string;
}

/** Words of a text; of a name in camel case also its parts. */
export function wordsOf(text: string): string[] {
  const words = text.split(/[^\p{L}\p{N}_]+/u).filter((word) => word !== "");
  return words.flatMap((word) => {
    const parts = word.split(/_|(?<=[a-z\d])(?=[A-Z])/).filter((part) => part !== "");
    return parts.length > 1 ? [word, ...parts] : [word];
  });
}

/** Options of the index. */
export const SEARCH_OPTIONS: Options<IndexedPart> = {
  fields: ["page", "heading", "text"],
  storeFields: ["address", "page", "heading", "begin"],
  tokenize: wordsOf,
  searchOptions: {
    boost: { heading: 4, page: 2 },
    prefix: true,
    fuzzy: (word: string): number => word.length > 4 ? 0.2 : 0,
    combineWith: "AND",
  },
};
