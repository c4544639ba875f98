/**
 * Text as a word of a POSIX shell's command line.
 *
 * @module
 */

/** The word, in quotes where a shell would read it otherwise. */
export function shellWord(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", String.raw`'\''`)}'`;
}
