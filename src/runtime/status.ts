/**
 * How a rank shows a live status line although only the launcher owns the terminal: it prints a control line, which
 * the launcher recognizes and redraws below the log. The form is an operating-system command of terminals, so the line
 * is invisible where no launcher reads it.
 *
 * @module
 */

const head = "\u001b]fullyshard;status;";
const tail = "\u0007";

/**
 * Makes the control line for a status.
 *
 * @param text the status, one line; an empty text takes the status away
 * @returns the control line, without a line break
 * @example
 * ```ts
 * import { decodeStatus, encodeStatus } from "./status.ts";
 *
 * console.assert(decodeStatus(encodeStatus("step 3, loss 4.2")) === "step 3, loss 4.2");
 * ```
 */
export function encodeStatus(text: string): string {
  return `${head}${printable(text)}${tail}`;
}

/**
 * Reads a control line.
 *
 * @param line a line that a rank printed
 * @returns the status, or undefined for an ordinary line
 */
export function decodeStatus(line: string): string | undefined {
  if (!line.startsWith(head) || !line.endsWith(tail)) return undefined;
  return line.slice(head.length, -tail.length);
}

/** A line break or an escape inside a status would spoil the terminal. */
function printable(text: string): string {
  return [...text].map((letter) => letter < " " || letter === "\u007f" ? " " : letter).join("");
}
