/**
 * The data of a training in words: its files, its samples, and the rows that were skipped or cut.
 *
 * @module
 */
import type { SampleSummary } from "../data/samples/sample_file.ts";
import type { StreamedRows } from "../data/stream/streamed_rows.ts";
import { countOf, formatBytes } from "../words.ts";

/** The unit that samples are counted by. */
export type SampleUnit = "sample" | "pair" | "answer";

/**
 * Samples in words, with the share of their tokens that is trained on.
 *
 * @param unit what is counted: of pairs and of answers with labels, each has two samples
 */
export function describeSamples(
  { samples, tokens, targets }: SampleSummary,
  sequenceLength: number,
  unit: SampleUnit = "sample",
): string {
  const share = (100 * targets / tokens).toFixed(1);
  const what = {
    sample: countOf(samples, "sample"),
    pair: `${countOf(samples / 2, "pair")} of answers`,
    answer: `${countOf(samples / 2, "answer")} with labels`,
  }[unit];
  const each = `${what} of at most ${countOf(sequenceLength, "token")}`;
  return `${each}, ${tokens} in all, ${targets} of them (${share} %) trained on`;
}

/** Describes losses of rows, a line each: rows that were skipped, and the ends of samples that were cut off. */
export function lossesOf({ samples, cutSamples, skipped, firstSkipped }: SampleSummary): readonly string[] {
  const lines: string[] = [];
  if (skipped > 0) lines.push(`Skipped ${countOf(skipped, "row")} that did not fit: ${firstSkipped.join("; ")}`);
  if (cutSamples > 0) {
    lines.push(`Cut the ends of ${cutSamples} of ${countOf(samples, "sample")}, which are longer than sequenceLength`);
  }
  return lines;
}

/** Data that is streamed, in words. */
export function describeStream({ files, byteLength }: StreamedRows, sequenceLength: number): string {
  return `A stream of ${countOf(files.length, "file")}, ${formatBytes(byteLength)}, in samples of at most ${
    countOf(sequenceLength, "token")
  }, tokenized as they are trained on`;
}

/** The first files, for messages. */
export function namesOf({ files }: { readonly files: readonly string[] }): string {
  const some = files.slice(0, 3).map((file) => `'${file}'`).join(", ");
  return files.length > 3 ? `${some} and ${countOf(files.length - 3, "other file")}` : some;
}
