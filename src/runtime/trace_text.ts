/**
 * Text of a rank's trace: the trace event format's list of JSON, an event a line.
 *
 * Note [Lines together]: events are kept and made lines together. Between kernels, which empty the caches, a line takes several times
 * as long. Kernels are kept as numbers, and their lines put together as bytes: objects and strings of them would be most of what a
 * step leaves to the garbage collector.
 *
 * @module
 */
import { at } from "../at.ts";
import type { KernelFacts, KernelTimes, TraceRecord } from "./trace.ts";

/** Events that are kept at most. */
const MOST_KEPT = 256;

/** Numbers of a kernel that are kept: its track, begin, duration, operations and bytes. */
const KERNEL_NUMBERS = 5;

/** Bytes of the memory for lines at first. */
const FIRST_BYTES = 2 ** 16;

/** Most bytes of a line's numbers and the names between them, besides the line's beginning. */
const NUMBERS_BYTES = 160;

/** Numbers below this one have exact thousandths. */
const EXACT = 2 ** 53 / 1000;

const MILLION = 1e6;

/** Most bytes of a letter in UTF-8. */
const LETTER_BYTES = 3;

/** Codes of letters. */
const [ZERO, POINT] = [48, 46];

/** Lines of the events of one rank. */
export class TraceText {
  readonly #rank: number;
  /** What is kept: names of kernels, and all other events. */
  readonly #kept: (string | TraceRecord)[] = [];
  /** Numbers of the kernels that are kept, at their events' places. */
  readonly #numbers = new Float64Array(MOST_KEPT * KERNEL_NUMBERS);
  readonly #encoder = new TextEncoder();
  #bytes = new Uint8Array(FIRST_BYTES);
  #length = 0;
  /** The text between the last line and the next one. */
  #between = this.#encoder.encode("[\n");
  readonly #comma = this.#encoder.encode(",\n");
  readonly #duration = this.#encoder.encode(',"dur":');
  readonly #flops = this.#encoder.encode(',"args":{"flops":');
  readonly #moved = this.#encoder.encode(',"bytes":');
  readonly #brace = this.#encoder.encode("}");
  /** Beginnings of lines up to a time, by track: of ends, and of kernels by name. */
  readonly #ends: Uint8Array[] = [];
  readonly #kernels: Map<string, Uint8Array>[] = [];

  constructor(rank: number) {
    this.#rank = rank;
  }

  /** True if no more events can be kept before {@link take}. */
  get isFull(): boolean {
    return this.#kept.length >= MOST_KEPT;
  }

  event(event: TraceRecord): void {
    this.#kept.push(event);
  }

  kernel(name: string, { tid, ts, dur }: KernelTimes, { flops, bytes }: KernelFacts): void {
    const [numbers, place] = [this.#numbers, this.#kept.length * KERNEL_NUMBERS];
    this.#kept.push(name);
    numbers[place] = tid;
    numbers[place + 1] = ts;
    numbers[place + 2] = dur;
    numbers[place + 3] = flops;
    numbers[place + 4] = bytes;
  }

  /** The lines of all events that were kept, until more are taken. */
  take(): Uint8Array {
    this.#length = 0;
    for (let i = 0; i < this.#kept.length; i++) {
      const event = at(this.#kept, i, "event");
      if (typeof event === "string") this.#kernelLine(event, i * KERNEL_NUMBERS);
      else this.#line(event);
    }
    this.#kept.length = 0;
    return this.#bytes.subarray(0, this.#length);
  }

  /** The end of the list. */
  end(): Uint8Array {
    return this.#encoder.encode("\n]\n");
  }

  #kernelLine(name: string, place: number): void {
    const tid = at(this.#numbers, place, "track");
    const names = this.#kernels[tid] ??= new Map<string, Uint8Array>();
    let beginning = names.get(name);
    if (beginning === undefined) {
      const text = `{"name":"${name}","cat":"kernel","ph":"X","pid":${this.#rank},"tid":${tid},"ts":`;
      names.set(name, beginning = this.#encoder.encode(text));
    }
    this.#separate(beginning.length + NUMBERS_BYTES);
    this.#copy(beginning);
    this.#number(at(this.#numbers, place + 1, "time"));
    this.#copy(this.#duration);
    this.#number(at(this.#numbers, place + 2, "duration"));
    this.#copy(this.#flops);
    this.#number(at(this.#numbers, place + 3, "number of operations"));
    this.#copy(this.#moved);
    this.#number(at(this.#numbers, place + 4, "number of bytes"));
    this.#copy(this.#brace);
    this.#copy(this.#brace);
  }

  #endLine(tid: number, ts: number): void {
    const beginning = this.#ends[tid] ??= this.#encoder.encode(`{"ph":"E","pid":${this.#rank},"tid":${tid},"ts":`);
    this.#separate(beginning.length + NUMBERS_BYTES);
    this.#copy(beginning);
    this.#number(ts);
    this.#copy(this.#brace);
  }

  #line(event: TraceRecord): void {
    if (event.ph === "E" && event.tid !== undefined && event.ts !== undefined) {
      return this.#endLine(event.tid, event.ts);
    }
    const text = JSON.stringify(event);
    this.#separate(LETTER_BYTES * text.length);
    this.#string(text);
  }

  /** Ends the line before, and makes room for one of that many bytes. */
  #separate(byteLength: number): void {
    const most = this.#length + this.#between.length + byteLength;
    if (most > this.#bytes.length) {
      const bytes = new Uint8Array(2 * most);
      bytes.set(this.#bytes.subarray(0, this.#length));
      this.#bytes = bytes;
    }
    this.#copy(this.#between);
    this.#between = this.#comma;
  }

  #string(text: string): void {
    this.#length += this.#encoder.encodeInto(text, this.#bytes.subarray(this.#length)).written;
  }

  /** Copies a short text: in a loop, which is faster than a call of the runtime. */
  #copy(text: Uint8Array): void {
    const [bytes, begin] = [this.#bytes, this.#length];
    for (let i = 0; i < text.length; i++) {
      const code = text[i];
      if (code === undefined) break;
      bytes[begin + i] = code;
    }
    this.#length = begin + text.length;
  }

  /** A number as JSON has it, to a thousandth. */
  #number(value: number): void {
    if (!(value >= 0 && value < EXACT)) return this.#string(String(value));
    const thousandths = Math.round(1000 * value);
    const whole = Math.floor(thousandths / 1000);
    this.#digits(whole);
    const rest = thousandths - 1000 * whole;
    if (rest === 0) return;
    this.#bytes[this.#length++] = POINT;
    this.#lastDigits(rest, 3);
    while (this.#bytes[this.#length - 1] === ZERO) this.#length--;
  }

  #digits(value: number): void {
    if (value < MILLION) {
      let places = 1;
      for (let next = 10; next <= value; next *= 10) places++;
      return this.#lastDigits(value, places);
    }
    const high = Math.floor(value / MILLION);
    this.#digits(high);
    this.#lastDigits(value - high * MILLION, 6);
  }

  /** The last `places` digits of an integer below a million. */
  #lastDigits(value: number, places: number): void {
    const [bytes, begin] = [this.#bytes, this.#length];
    for (let place = begin + places - 1, left = value | 0; place >= begin; place--) {
      const tenth = (left / 10) | 0;
      bytes[place] = ZERO + left - 10 * tenth;
      left = tenth;
    }
    this.#length = begin + places;
  }
}
