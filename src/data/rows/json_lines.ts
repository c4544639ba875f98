/**
 * Rows of a file that holds one JSON object a line.
 *
 * Invariant: no more of the file is in memory than a piece and a row.
 *
 * @module
 */
import { isJsonObject, kindOf } from "../../json.ts";
import { type BadRow, MAX_ROW_BYTES, type Row, type RowPlace, type RowProblem, tooLong } from "./row.ts";
import { decodeUtf8, notUtf8 } from "./utf8.ts";

const NEW_LINE = 10;

/** Rows of pieces of a file. Blank lines are no rows. */
export async function* jsonLines(file: string, pieces: AsyncIterable<Uint8Array>): AsyncGenerator<Row | BadRow> {
  for await (const { bytes, line, byteLength } of linesOf(pieces)) {
    const place = { file, line };
    const row = bytes === undefined ? { ...place, problem: tooLong(byteLength) } : parseRow(bytes, place);
    if (row !== undefined) yield row;
  }
}

/** The row of a line; undefined for a blank one. */
function parseRow(bytes: Uint8Array, place: RowPlace): Row | BadRow | undefined {
  const decoded = decodeUtf8(bytes);
  if (!("text" in decoded)) return { ...place, problem: { expected: "UTF-8 text", got: notUtf8(decoded) } };
  if (decoded.text.trim() === "") return undefined;
  return { ...place, ...parseObjectOf(decoded.text, "one JSON object a line") };
}

/** A JSON object as a row's contents, or its problem. */
export function parseObjectOf(
  text: string,
  expected: string,
): { readonly value: Row["value"] } | { readonly problem: RowProblem } {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    const detail = cause instanceof Error ? cause.message : String(cause);
    return { problem: { expected, got: `${JSON.stringify(text.trim().slice(0, 60))} (${detail})` } };
  }
  return isJsonObject(value) ? { value } : { problem: { expected, got: kindOf(value) } };
}

/** A line of a file; without its bytes where these are too many. */
interface Line {
  /** Valid until the next line. */
  readonly bytes: Uint8Array | undefined;
  readonly line: number;
  readonly byteLength: number;
}

/** Lines of pieces; a last line without an end counts. */
async function* linesOf(pieces: AsyncIterable<Uint8Array>): AsyncGenerator<Line> {
  /** The beginning of a line whose end has not been read. */
  let begun: Uint8Array[] = [];
  let begunBytes = 0;
  let line = 0;
  const finish = (end: Uint8Array): Line => {
    const byteLength = begunBytes + end.length;
    const bytes = byteLength > MAX_ROW_BYTES
      ? undefined
      : begun.length === 0
      ? end
      : joined([...begun, end], byteLength);
    [begun, begunBytes] = [[], 0];
    return { bytes, line: ++line, byteLength };
  };
  for await (const piece of pieces) {
    let start = 0;
    for (let end = piece.indexOf(NEW_LINE); end >= 0; end = piece.indexOf(NEW_LINE, start)) {
      yield finish(piece.subarray(start, end));
      start = end + 1;
    }
    if (start === piece.length) continue;
    begunBytes += piece.length - start;
    // Of a line that is too long its length alone is kept.
    if (begunBytes > MAX_ROW_BYTES) begun = [];
    else begun.push(piece.slice(start));
  }
  if (begunBytes > 0) yield finish(new Uint8Array(0));
}

function joined(parts: readonly Uint8Array[], byteLength: number): Uint8Array {
  const whole = new Uint8Array(byteLength);
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
