/**
 * Numbers of each rank's micro-batches, on every rank, in the order in which one rank would have taken the micro-batches.
 *
 * @module
 */
import { at } from "../at.ts";
import type { ProcessGroup } from "../comm/process_group.ts";

/**
 * Exchanges numbers. Every rank must call it, with as many micro-batches.
 *
 * @param own for each micro-batch a list of examples, each of `words` numbers
 * @param what names them in errors
 */
export function exchangeNumbers(
  own: readonly (readonly (readonly number[])[])[],
  words: number,
  data: ProcessGroup,
  what: string,
): readonly (readonly number[])[] {
  const given = Float64Array.from(own.flatMap((examples) => [examples.length, ...examples.flat()]));
  const places = data.exchange(new Uint8Array(given.buffer), what).map((bytes) => {
    return { values: new Float64Array(bytes.slice().buffer), next: 0 };
  });
  return own.flatMap(() =>
    places.flatMap((place) => {
      const length = at(place.values, place.next, "number of examples");
      const begin = place.next + 1;
      place.next = begin + length * words;
      return Array.from({ length }, (_, i) => [...place.values.subarray(begin + i * words, begin + (i + 1) * words)]);
    })
  );
}
