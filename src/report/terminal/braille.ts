/**
 * A curve as text: letters of braille have two columns of four dots each.
 *
 * @module
 */

/** Bits of the dots of a letter, by column, from the top. */
const DOTS = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]] as const;

const BLANK = 0x2800;

/**
 * Draws numbers from left to right. Where there are more numbers than columns of dots, a column is the mean of several; null and
 * numbers that are not finite leave a gap.
 *
 * @param width letters of a line
 * @param height number of lines
 * @returns the lines, and the numbers at the upper and the lower edge; undefined if there is no number
 */
export function plotBraille(
  values: readonly (number | null)[],
  width: number,
  height: number,
): { readonly lines: readonly string[]; readonly top: number; readonly bottom: number } | undefined {
  const columns = columnsOf(values, 2 * width);
  const known = columns.filter((value) => value !== undefined);
  if (known.length === 0) return undefined;
  const [top, bottom] = [Math.max(...known), Math.min(...known)];
  const rows = 4 * height;
  const rowOf = (value: number): number =>
    top === bottom ? rows >> 1 : Math.round((top - value) / (top - bottom) * (rows - 1));
  const cells = Array.from({ length: height }, () => new Uint8Array(width));
  const dot = (x: number, y: number): void => {
    const line = cells[y >> 2];
    const bit = DOTS[x & 1]?.[y & 3];
    if (line !== undefined && bit !== undefined) line[x >> 1] = (line[x >> 1] ?? 0) | bit;
  };
  let before: number | undefined;
  for (const [x, value] of columns.entries()) {
    if (value === undefined) {
      before = undefined;
      continue;
    }
    const row = rowOf(value);
    // The line from the last dot to this one, in this column.
    const from = before === undefined || before === row ? row : before < row ? before + 1 : before - 1;
    for (let y = Math.min(from, row); y <= Math.max(from, row); y++) dot(x, y);
    before = row;
  }
  return { lines: cells.map((line) => String.fromCharCode(...Array.from(line, (bits) => BLANK + bits))), top, bottom };
}

/** A value for each column of dots. Fewer numbers than columns are spread, each over as many columns. */
function columnsOf(values: readonly (number | null)[], count: number): readonly (number | undefined)[] {
  return Array.from({ length: count }, (_, x) => {
    const begin = Math.floor(x * values.length / count);
    const end = Math.max(begin + 1, Math.floor((x + 1) * values.length / count));
    const part = values.slice(begin, end).filter((value) => value !== null && Number.isFinite(value));
    return part.length === 0 ? undefined : part.reduce((sum: number, value) => sum + (value ?? 0), 0) / part.length;
  });
}

/** A bar of eighths of a letter, padded to its width. */
export function bar(part: number, whole: number, width: number): string {
  const eighths = Math.round(8 * width * Math.min(1, Math.max(0, whole > 0 ? part / whole : 0)));
  const rest = eighths % 8;
  return ("█".repeat(eighths >> 3) + (rest === 0 ? "" : String.fromCharCode(0x2590 - rest))).padEnd(width);
}
