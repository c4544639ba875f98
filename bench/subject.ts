/**
 * What a benchmark is.
 *
 * @module
 */

/** One measured thing. */
export interface BenchCase {
  readonly name: string;
  readonly unit: string;
  readonly higherIsBetter: boolean;
  /** One round of ours. */
  ours(): Promise<number>;
  /** One round of the peer's, where there is a peer. */
  readonly peer?: () => Promise<number>;
}

/** How to run. */
export interface BenchSetting {
  readonly runtime: "bun" | "deno";
  /** The Python that runs the peer. */
  readonly python: string;
}

/** A group of cases. */
export interface Subject {
  readonly name: string;
  cases(setting: BenchSetting): Promise<readonly BenchCase[]>;
}
