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
  /** True if the answer is desirable; undefined where rows do not say it. */
  readonly isDesirable?: boolean | undefined;
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
  /** True where the answer of a sample is desirable. @default rows do not say it */
  isDesirable?(index: number): boolean;
  /** Gives up what it holds open. */
  close(): void;
}

/** Samples of a list. */
export function samplesOfList(samples: readonly TokenSample[], fingerprint: string): SampleStream {
  return {
    ...{ length: samples.length, fingerprint },
    lengthOf: (index) => at(samples, index, "sample").ids.length,
    read: (index) => Promise.resolve(at(samples, index, "sample")),
    ...samples[0]?.isDesirable === undefined
      ? {}
      : { isDesirable: (index: number) => at(samples, index, "sample").isDesirable === true },
    close: () => undefined,
  };
}
