/**
 * The newest events of a rank's trace, as numbers in memory and in a file of their own, the tail. They become lines of the trace
 * together, once a step: between kernels, which empty the caches, a line takes several times as long.
 *
 * The memory is a list of 64-bit floats, and the file has the same bytes:
 * 1. the byte length of the file of lines, behind which these events belong;
 * 2. records of events, each of which begins with its kind:
 *    - a name: its byte length, its UTF-8; names are numbered in the order of their records;
 *    - a kernel's call: the number of its name, track, begin, duration, operations, bytes;
 *    - the end of a span: track, time;
 *    - any other event: its byte length, its line in UTF-8;
 * 3. a 0. Bytes behind it are left from an earlier, longer tail.
 *
 * UTF-8 is padded to a multiple of 8 bytes. Floats have the byte order of the machine that wrote them.
 *
 * @module
 */
import { at } from "../at.ts";
import type { KernelFacts, KernelTimes, TraceRecord } from "./trace.ts";

/** Kinds of records. */
const KINDS = { name: 1, kernel: 2, end: 3, line: 4 } as const;

/** Floats of a record of a kernel, which are the most besides text. */
const KERNEL_FLOATS = 7;

/** Bytes of a float. */
const FLOAT_BYTES = 8;

/** Floats of the memory at first. */
const FIRST_FLOATS = 2 ** 14;

/** Floats at which the tail is full, half a MiB. */
const MOST_FLOATS = 2 ** 16;

/** Most bytes of a UTF-16 unit in UTF-8. */
const UNIT_BYTES = 3;

/** Events of one rank since its last lines. */
export class TraceTail {
  readonly #encoder = new TextEncoder();
  #floats = new Float64Array(FIRST_FLOATS);
  #bytes = new Uint8Array(this.#floats.buffer);
  /** Floats in use. */
  #length = 1;
  /** Floats that the file has. */
  #saved = 0;
  /** Numbers of names. */
  readonly #names = new Map<string, number>();

  /** True if the events should become lines now. */
  get isFull(): boolean {
    return this.#length >= MOST_FLOATS;
  }

  /** Takes an event that is not a kernel's call. */
  event(event: TraceRecord): void {
    if (event.ph === "E" && event.tid !== undefined && event.ts !== undefined) {
      this.#reserve(3);
      this.#push(KINDS.end);
      this.#push(event.tid);
      this.#push(event.ts);
    } else this.#text(KINDS.line, JSON.stringify(event));
  }

  /** Takes a kernel's call. */
  kernel(name: string, { tid, ts, dur }: KernelTimes, { flops, bytes }: KernelFacts): void {
    let number = this.#names.get(name);
    if (number === undefined) {
      this.#names.set(name, number = this.#names.size);
      this.#text(KINDS.name, name);
    }
    this.#reserve(KERNEL_FLOATS);
    const [floats, begin] = [this.#floats, this.#length];
    floats[begin] = KINDS.kernel;
    floats[begin + 1] = number;
    floats[begin + 2] = tid;
    floats[begin + 3] = ts;
    floats[begin + 4] = dur;
    floats[begin + 5] = flops;
    floats[begin + 6] = bytes;
    this.#length = begin + KERNEL_FLOATS;
  }

  /** Bytes that the file lacks, and their place in it; undefined if there are none. Counts them as written. */
  unsaved(): { readonly bytes: Uint8Array; readonly place: number } | undefined {
    if (this.#saved === this.#length) return undefined;
    this.#reserve(1);
    this.#floats[this.#length] = 0;
    const place = this.#saved * FLOAT_BYTES;
    this.#saved = this.#length;
    return { bytes: this.#bytes.subarray(place, (this.#length + 1) * FLOAT_BYTES), place };
  }

  /** The lines of its events, none with a line break. @param rank the rank of the trace */
  lines(rank: number): readonly string[] {
    return linesIn(this.#floats.subarray(0, this.#length), rank);
  }

  /** Forgets all events. @param lineBytes the byte length of the file of lines, behind which the next events belong */
  clear(lineBytes: number): void {
    this.#floats[0] = lineBytes;
    this.#length = 1;
    this.#saved = 0;
    this.#names.clear();
  }

  #text(kind: number, text: string): void {
    this.#reserve(2 + Math.ceil(UNIT_BYTES * text.length / FLOAT_BYTES));
    this.#push(kind);
    const begin = (this.#length + 1) * FLOAT_BYTES;
    const { written } = this.#encoder.encodeInto(text, this.#bytes.subarray(begin));
    this.#push(written);
    this.#length += Math.ceil(written / FLOAT_BYTES);
  }

  #push(value: number): void {
    this.#floats[this.#length++] = value;
  }

  /** Makes room for floats behind those in use, and for the 0 behind them. */
  #reserve(floats: number): void {
    const most = this.#length + floats + 1;
    if (most <= this.#floats.length) return;
    const memory = new Float64Array(2 * most);
    memory.set(this.#floats.subarray(0, this.#length));
    [this.#floats, this.#bytes] = [memory, new Uint8Array(memory.buffer)];
  }
}

/** The byte length of the file of lines behind which a tail belongs. @param bytes of the tail's file */
export function placeOfTail(bytes: Uint8Array): number | undefined {
  return floatsOf(bytes)[0];
}

/** The lines of a tail's events, none with a line break. @param bytes of the tail's file @param rank the rank of the trace */
export function linesOfTail(bytes: Uint8Array, rank: number): readonly string[] {
  return linesIn(floatsOf(bytes), rank);
}

function floatsOf(bytes: Uint8Array): Float64Array {
  const byteLength = Math.floor(bytes.length / FLOAT_BYTES) * FLOAT_BYTES;
  return new Float64Array(bytes.slice(0, byteLength).buffer);
}

function linesIn(floats: Float64Array, rank: number): readonly string[] {
  const bytes = new Uint8Array(floats.buffer, floats.byteOffset, floats.byteLength);
  const decoder = new TextDecoder();
  const [names, lines]: [string[], string[]] = [[], []];
  const float = (place: number): number => at(floats, place, "float of a trace's tail");
  let place = 1;
  const text = (): string => {
    const begin = (place + 2) * FLOAT_BYTES;
    const byteLength = float(place + 1);
    place += 2 + Math.ceil(byteLength / FLOAT_BYTES);
    return decoder.decode(bytes.subarray(begin, begin + byteLength));
  };
  while (place < floats.length) {
    switch (floats[place]) {
      case KINDS.name:
        names.push(text());
        break;
      case KINDS.kernel: {
        const name = at(names, float(place + 1), "name");
        const times = `"tid":${float(place + 2)},"ts":${float(place + 3)},"dur":${float(place + 4)}`;
        const work = `{"flops":${float(place + 5)},"bytes":${float(place + 6)}}`;
        lines.push(`{"name":"${name}","cat":"kernel","ph":"X","pid":${rank},${times},"args":${work}}`);
        place += KERNEL_FLOATS;
        break;
      }
      case KINDS.end:
        lines.push(`{"ph":"E","pid":${rank},"tid":${float(place + 1)},"ts":${float(place + 2)}}`);
        place += 3;
        break;
      case KINDS.line:
        lines.push(text());
        break;
      default:
        return lines;
    }
  }
  return lines;
}
