/**
 * Samples of rows, made once and kept in a file that is named by a fingerprint of their inputs. The trainer chooses the rank that
 * makes it.
 *
 * Invariant: a file appears complete, so a file that is there is right.
 *
 * @module
 */
import { ConfigError } from "../../errors.ts";
import { sha256 } from "../../runtime/checksum.ts";
import { pathKind } from "../../runtime/files.ts";
import { countOf } from "../../words.ts";
import { makeCacheFile } from "../cache_file.ts";
import { contentsOf } from "../chat/columns.ts";
import { blockSamples, type LabeledIds, labeledIds, labeledSample } from "../chat/encode_labeled.ts";
import { encodePair } from "../chat/encode_pair.ts";
import { type EncodedRow, encodeRow, type RowEncoding } from "../chat/encode_row.ts";
import { labeledOf } from "../chat/labeled.ts";
import { pairOf } from "../chat/preference.ts";
import { KeptFingerprint, stampOf } from "../fingerprints.ts";
import { eosOf } from "../token_stream.ts";
import type { RowSource } from "../rows/open_rows.ts";
import { type BadRow, type Row, rowError } from "../rows/row.ts";
import { type OpenSamples, openSamples, samplesInMemory, type SampleSummary, SampleWriter } from "./sample_file.ts";
import { IGNORED, type TokenSample } from "./sample.ts";

/** Options for encoding rows as samples and for leaving rows out. */
export interface SampleOptions extends RowEncoding {
  /** The column of rows that are text. */
  readonly textField: string;
  /** True if rows that do not fit are left out and counted. @default the first such row ends the training */
  readonly skipBadRows: boolean;
  /** True if each row is a preference, which becomes two samples: of the chosen answer, and of the rejected one. @default false */
  readonly isPreference?: boolean | undefined;
  /**
   * With `isPreference`: rows have one answer and a label, and become two samples, with the row's own answer and with that of the row
   * before in a block of as many rows. @default rows have two answers
   */
  readonly labelBlock?: number | undefined;
}

/** Samples as a file that may have to be made first. */
export interface SampleCache {
  readonly path: string;
  /** One fingerprint of the rows and their encoding together: hexadecimal, the same on every rank. */
  readonly fingerprint: string;
  /** The fingerprint of the rows: {@link RowSource.fingerprint}. */
  readonly textFingerprint: string;
  exists(): boolean;
  /**
   * Makes the file. Concurrent calls do the work twice, harmlessly.
   *
   * @throws {ConfigError} naming file and line of a row that does not fit, or files without any row that does
   * @throws {CheckpointError} if a file of the rows is changed meanwhile
   * @throws {FileError} if a file cannot be read or written; nothing is left behind
   */
  build(): Promise<void>;
  /** Opens the file. @throws {CheckpointError} if it is damaged */
  open(): OpenSamples;
}

/** The number of skipped rows that are described in words. */
const MOST_SKIPPED = 3;
/** Changes whenever the same rows give other samples than before. */
const ENCODING = "samples 2";
/** Likewise for pairs. */
const PAIRS = "pairs 1";

/**
 * The cache of rows under an encoding.
 *
 * @param directory folder of the files; made when needed
 * @param known fingerprint of the rows, where another rank has read them. @default they are read, or looked up
 */
export function sampleCache(
  source: RowSource,
  options: SampleOptions,
  directory: string,
  known?: string,
): SampleCache {
  const before = known === undefined ? new KeptFingerprint(directory, source.files, ENCODING) : undefined;
  const kept = known ?? before?.read();
  const textFingerprint = kept ?? source.fingerprint();
  const fingerprint = fingerprintOf(textFingerprint, options);
  const path = `${directory}/samples-${fingerprint.slice(0, 32)}.bin`;
  const exists = (): boolean => pathKind(path) === "file";
  if (kept === undefined && exists()) before?.keep(textFingerprint);
  return {
    ...{ path, fingerprint, textFingerprint, exists },
    build: async () => {
      await makeCacheFile(directory, path, () => stampOf(source.files, ENCODING).print, async (file) => {
        const writer = new SampleWriter(file);
        const count = new Counter(options);
        for await (const sample of samplesOf(source, options, count)) writer.add(sample);
        writer.end(count.summary(source));
      });
      before?.keep(textFingerprint);
    },
    open: () => openSamples(path, fingerprint),
  };
}

/**
 * Makes samples of rows in memory.
 *
 * @param known fingerprint of the rows, where another rank has read them. @default they are read
 * @throws {ConfigError} as {@link SampleCache.build}
 */
export async function encodeInMemory(source: RowSource, options: SampleOptions, known?: string): Promise<OpenSamples> {
  const samples: TokenSample[] = [];
  const count = new Counter(options);
  for await (const sample of samplesOf(source, options, count)) samples.push(sample);
  return samplesInMemory(samples, count.summary(source), fingerprintOf(known ?? source.fingerprint(), options));
}

/** A fingerprint of the settings of an encoding that change samples. */
export function encodingPrint(
  { tokenizer, templates, lossOn, maxLength, textField, skipBadRows, isPreference = false, labelBlock, ends }:
    SampleOptions,
): string {
  const settings = [ENCODING, lossOn ?? "", maxLength, textField, skipBadRows, eosOf(tokenizer)];
  if (labelBlock !== undefined) settings.push("labels 1", labelBlock);
  else if (isPreference) settings.push(PAIRS);
  if (ends !== undefined) settings.push("ends", ends.beginId ?? "none");
  return sha256([JSON.stringify(settings), tokenizer.fingerprint, "\0", templates?.print ?? ""]);
}

function fingerprintOf(rows: string, options: SampleOptions): string {
  return sha256([encodingPrint(options), rows]);
}

/** The samples of rows, counted. */
export async function* samplesOf(
  source: { rows(): AsyncIterable<Row | BadRow> },
  options: SampleOptions,
  count: Counter,
): AsyncGenerator<TokenSample> {
  if (options.labelBlock !== undefined) return yield* labeledSamples(source, options, options.labelBlock, count);
  for await (const row of source.rows()) {
    try {
      if ("problem" in row) throw rowError(options.name, row, row.problem);
      for (const sample of samplesOfRow(row, options)) {
        count.take(sample, sample.cut);
        yield sample;
      }
    } catch (error) {
      if (!count.skips(error, options.skipBadRows)) throw error;
    }
  }
}

/** The samples of rows with labels, block by block. */
async function* labeledSamples(
  source: { rows(): AsyncIterable<Row | BadRow> },
  options: SampleOptions,
  labelBlock: number,
  count: Counter,
): AsyncGenerator<TokenSample> {
  let block: LabeledIds[] = [];
  const samples = function* (): Generator<TokenSample> {
    for (const sample of blockSamples(block, options.maxLength)) {
      count.take(sample, sample.cut);
      yield sample;
    }
    block = [];
  };
  for await (const row of source.rows()) {
    try {
      if ("problem" in row) throw rowError(options.name, row, row.problem);
      block.push(labeledIds(labeledOf(row, options), row, options));
    } catch (error) {
      if (!count.skips(error, options.skipBadRows)) throw error;
    }
    if (block.length === labelBlock) yield* samples();
  }
  yield* samples();
}

/**
 * The samples of a row: one, or two of a preference.
 *
 * @throws {ConfigError} naming file and line of a row that does not fit
 */
export function samplesOfRow(row: Row, options: Omit<SampleOptions, "skipBadRows">): readonly EncodedRow[] {
  if (options.labelBlock !== undefined) {
    const ids = labeledIds(labeledOf(row, options), row, options);
    return [labeledSample(ids, ids.completion, options.maxLength)];
  }
  if (options.isPreference === true) return encodePair(pairOf(row, options), row, options);
  return [encodeRow(contentsOf(row, options), row, options)];
}

/** Counts samples and rows that are skipped. */
export class Counter {
  readonly #name: string;
  #samples = 0;
  #tokens = 0;
  #targets = 0;
  #cutSamples = 0;
  #skipped = 0;
  readonly #firstSkipped: string[] = [];

  constructor({ name }: Pick<SampleOptions, "name">) {
    this.#name = name;
  }

  /** Counts a sample. */
  take({ ids, labels }: TokenSample, cut: number): void {
    this.#samples++;
    this.#tokens += ids.length;
    for (const label of labels) if (label !== IGNORED) this.#targets++;
    if (cut > 0) this.#cutSamples++;
  }

  /**
   * Counts a row that does not fit, where such rows are skipped.
   *
   * @returns false for an error that is to be thrown
   */
  skips(error: unknown, skipBadRows: boolean): boolean {
    // A problem without a place, as that there is no template, is not the row's.
    if (!skipBadRows || !(error instanceof ConfigError)) return false;
    if (error.problems.some(({ where }) => where === undefined)) return false;
    this.#skip(error);
    return true;
  }

  /** The number of rows that were skipped. */
  get skipped(): number {
    return this.#skipped;
  }

  /** The number of skipped rows, and the problems of the first ones, in words. */
  describeSkipped(): string {
    return `${countOf(this.#skipped, "row")} that did not fit: ${this.#firstSkipped.join("; ")}`;
  }

  #skip(error: ConfigError): void {
    this.#skipped++;
    if (this.#firstSkipped.length >= MOST_SKIPPED) return;
    for (const { where, expected, got } of error.problems) {
      this.#firstSkipped.push(`${where}: expected ${expected}, got ${got}`);
    }
  }

  /** The counts of samples, tokens and skipped rows. @throws {ConfigError} if no row was a sample */
  summary({ files }: Pick<RowSource, "files">): SampleSummary {
    const skipped = this.#skipped;
    if (this.#samples > 0) {
      return {
        ...{ samples: this.#samples, tokens: this.#tokens, targets: this.#targets, cutSamples: this.#cutSamples },
        ...{ skipped, firstSkipped: this.#firstSkipped },
      };
    }
    const [first] = this.#firstSkipped;
    const why = first === undefined ? "" : `, of which ${countOf(skipped, "row")} did not fit; the first is ${first}`;
    const got = `none in ${files.slice(0, 3).map((file) => `'${file}'`).join(", ")}${why}`;
    throw new ConfigError([{ path: this.#name, expected: "rows to train on", got }]);
  }
}
