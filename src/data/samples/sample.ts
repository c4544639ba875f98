/**
 * A sample: the tokens of a row with what of them is trained on.
 *
 * @module
 */
import { at } from "../../at.ts";

/** Tokens of a row. */
export interface TokenSample {
  /** Token ids. */
  readonly ids: Int32Array;
  /** The same ids, -100 where a token is read but not trained on. Not shifted: each label belongs to its own token. */
  readonly labels: Int32Array;
}

/** The label of a token that is not trained on. */
export const IGNORED = -100;

/** Samples, read by number. */
export interface SampleStream {
  /** The number of samples. */
  readonly length: number;
  /** Changes with the samples: hexadecimal. */
  readonly fingerprint: string;
  /** Tokens of a sample. */
  lengthOf(index: number): number;
  /** Reads a sample. */
  read(index: number): Promise<TokenSample>;
  /** Gives up what it holds open. */
  close(): void;
}

/** Samples of a list. */
export function samplesOfList(samples: readonly TokenSample[], fingerprint: string): SampleStream {
  return {
    ...{ length: samples.length, fingerprint },
    lengthOf: (index) => at(samples, index, "sample").ids.length,
    read: (index) => Promise.resolve(at(samples, index, "sample")),
    close: () => undefined,
  };
}
