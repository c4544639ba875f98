/**
 * Samples in a file: written one after the other, read by number.
 *
 * Note [Sample file]: int32 for each token, little-endian: its id where it is trained on, else -1 - id. Then a float64 for each sample
 * and one more, the place of its first token; a JSON text about all of it; and 32 bytes: "fssample", uint32 version, uint32 bytes of
 * the text, uint64 samples, uint64 tokens. What is known last comes last. In version 2, of rows with labels, a byte for each sample comes
 * before the text, 1 of one that is desirable.
 *
 * @module
 */
import * as z from "zod";
import { at } from "../../at.ts";
import { ArgumentError, CheckpointError } from "../../errors.ts";
import { openReadable, type ReadableFile, type WritableFile } from "../../runtime/files.ts";
import { IGNORED, samplesOfList, type SampleStream, type TokenSample } from "./sample.ts";

const MAGIC = "fssample";
const VERSION = 1;
const VERSION_WITH_LABELS = 2;
const TRAILER = 32;
/** Tokens that are gathered before they are written. */
const CHUNK = 1 << 18;

/** The counts of samples and skipped rows. */
export interface SampleSummary {
  readonly samples: number;
  readonly tokens: number;
  /** Tokens that are trained on. */
  readonly targets: number;
  /** Samples that were cut off, as they are longer than a sample may be. */
  readonly cutSamples: number;
  /** Rows that were skipped. */
  readonly skipped: number;
  /** The problems of the first skipped rows. */
  readonly firstSkipped: readonly string[];
}

const summarySchema: z.ZodType<SampleSummary> = z.strictObject({
  samples: z.int(),
  tokens: z.int(),
  targets: z.int(),
  cutSamples: z.int(),
  skipped: z.int(),
  firstSkipped: z.array(z.string()),
});

/** Writes samples. */
export class SampleWriter {
  readonly #file: Pick<WritableFile, "write">;
  readonly #chunk = new Int32Array(CHUNK);
  readonly #starts: number[] = [0];
  readonly #desirable: number[] = [];
  #filled = 0;

  constructor(file: Pick<WritableFile, "write">) {
    this.#file = file;
  }

  /** Adds a sample. */
  add({ ids, labels, isDesirable }: TokenSample): void {
    if (isDesirable !== undefined) this.#desirable.push(Number(isDesirable));
    for (const [i, id] of ids.entries()) {
      if (this.#filled === CHUNK) this.#flush();
      this.#chunk[this.#filled++] = labels[i] === IGNORED ? -1 - id : id;
    }
    this.#starts.push(at(this.#starts, this.#starts.length - 1, "start") + ids.length);
  }

  /** Writes what follows the tokens. */
  end(summary: SampleSummary): void {
    this.#flush();
    this.#file.write(new Uint8Array(Float64Array.from(this.#starts).buffer));
    this.#file.write(Uint8Array.from(this.#desirable));
    const text = new TextEncoder().encode(JSON.stringify(summary));
    this.#file.write(text);
    const trailer = new Uint8Array(TRAILER);
    const view = new DataView(trailer.buffer);
    trailer.set(new TextEncoder().encode(MAGIC));
    view.setUint32(8, this.#desirable.length === 0 ? VERSION : VERSION_WITH_LABELS, true);
    view.setUint32(12, text.length, true);
    view.setBigUint64(16, BigInt(this.#starts.length - 1), true);
    view.setBigUint64(24, BigInt(at(this.#starts, this.#starts.length - 1, "start")), true);
    this.#file.write(trailer);
  }

  #flush(): void {
    this.#file.write(new Uint8Array(this.#chunk.buffer, 0, this.#filled * 4).slice());
    this.#filled = 0;
  }
}

/** Samples of rows, with what was made of these. */
export interface OpenSamples extends SampleStream {
  readonly summary: SampleSummary;
}

/**
 * Opens a file of samples.
 *
 * @throws {FileError} if it is not there
 * @throws {CheckpointError} if it is damaged
 */
export function openSamples(path: string, fingerprint: string): OpenSamples {
  const file = openReadable(path);
  try {
    return readSamples(file, fingerprint);
  } catch (error) {
    file.close();
    throw error;
  }
}

function readSamples(file: ReadableFile, fingerprint: string): OpenSamples {
  const damaged = (): CheckpointError =>
    new CheckpointError(file.path, "This file of samples is damaged: delete it; it is made again");
  if (file.byteLength < TRAILER) throw damaged();
  const trailer = bytesOf(file, file.byteLength - TRAILER, TRAILER);
  const view = new DataView(trailer.buffer);
  const version = view.getUint32(8, true);
  const isOurs = new TextDecoder().decode(trailer.subarray(0, 8)) === MAGIC &&
    (version === VERSION || version === VERSION_WITH_LABELS);
  const textLength = view.getUint32(12, true);
  const [length, tokens] = [Number(view.getBigUint64(16, true)), Number(view.getBigUint64(24, true))];
  const indexAt = tokens * 4;
  const labelsAt = indexAt + (length + 1) * 8;
  const textAt = labelsAt + (version === VERSION_WITH_LABELS ? length : 0);
  if (!isOurs || textAt + textLength + TRAILER !== file.byteLength) throw damaged();
  const starts = new Float64Array(bytesOf(file, indexAt, (length + 1) * 8).buffer);
  const summary = summarySchema.safeParse(JSON.parse(new TextDecoder().decode(bytesOf(file, textAt, textLength))));
  if (!summary.success || starts[length] !== tokens) throw damaged();
  const desirable = version === VERSION_WITH_LABELS ? bytesOf(file, labelsAt, length) : undefined;
  const rangeOf = (index: number): readonly [number, number] => {
    const [start, end] = [starts[index], starts[index + 1]];
    if (start !== undefined && end !== undefined) return [start, end];
    throw new ArgumentError(`Sample ${index} is not among the ${length} of '${file.path}'`);
  };
  return {
    length,
    fingerprint,
    summary: summary.data,
    lengthOf(index): number {
      const [start, end] = rangeOf(index);
      return end - start;
    },
    async read(index): Promise<TokenSample> {
      const [start, end] = rangeOf(index);
      return unpacked(new Int32Array(bytesOf(file, start * 4, (end - start) * 4).buffer));
    },
    ...desirable === undefined ? {} : { isDesirable: (index: number) => at(desirable, index, "label of sample") === 1 },
    close: () => file.close(),
  };
}

/** Ids and labels of what a file holds. */
function unpacked(packed: Int32Array): TokenSample {
  return {
    ids: packed.map((one) => one < 0 ? -1 - one : one),
    labels: packed.map((one) => one < 0 ? IGNORED : one),
  };
}

function bytesOf(file: ReadableFile, offset: number, byteLength: number): Uint8Array<ArrayBuffer> {
  const bytes = new Uint8Array(byteLength);
  file.read(offset, bytes);
  return bytes;
}

/** Samples that are in memory. */
export function samplesInMemory(
  samples: readonly TokenSample[],
  summary: SampleSummary,
  fingerprint: string,
): OpenSamples {
  return { ...samplesOfList(samples, fingerprint), summary };
}
