/**
 * The known name closest to a mistyped one. It is only suggested, never accepted in place of the one asked for.
 *
 * @module
 */
import { at } from "../at.ts";

/**
 * The known name that was probably meant, or undefined where none is close.
 *
 * @param most typing mistakes between the two. @default a third of the letters, or 2
 */
export function nearestName(
  name: string,
  known: Iterable<string>,
  most: number = Math.max(2, Math.floor(name.length / 3)),
): string | undefined {
  let best: string | undefined;
  let bestDistance = most + 1;
  for (const candidate of known) {
    const distance = editDistance(name.toLowerCase(), candidate.toLowerCase());
    // A distance as long as the word itself means that nothing of it was kept.
    if (distance < bestDistance && distance < candidate.length) {
      best = candidate;
      bestDistance = distance;
    }
  }
  return best;
}

/**
 * The end of an error that refuses a name: `. Did you mean 'steps'?`, or nothing where no known name is close.
 *
 * @param prefix the text before a known name, e.g. `--`
 */
export function didYouMean(name: string, known: Iterable<string>, prefix: string = ""): string {
  const nearest = nearestName(name, known);
  return nearest === undefined ? "" : `. Did you mean '${prefix}${nearest}'?`;
}

/** Insertions, deletions, substitutions and swaps of neighbors that turn one word into the other. */
function editDistance(left: string, right: string): number {
  let beforeLast: number[] = [];
  let last = Array.from({ length: right.length + 1 }, (_, column) => column);
  for (let row = 1; row <= left.length; row++) {
    const current = [row];
    for (let column = 1; column <= right.length; column++) {
      const same = left[row - 1] === right[column - 1];
      let cost = Math.min(
        at(last, column, "column") + 1,
        at(current, column - 1, "column") + 1,
        at(last, column - 1, "column") + (same ? 0 : 1),
      );
      const swapped = row > 1 && column > 1 && left[row - 1] === right[column - 2] &&
        left[row - 2] === right[column - 1];
      if (swapped) cost = Math.min(cost, at(beforeLast, column - 2, "column") + 1);
      current.push(cost);
    }
    beforeLast = last;
    last = current;
  }
  return at(last, right.length, "column");
}
