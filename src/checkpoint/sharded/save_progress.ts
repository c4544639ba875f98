/**
 * The progress of the Worker of an asynchronous save, in memory that the Worker shares with the thread that started
 * the save: so that thread learns of a failure before its next collective, without a turn of the event loop.
 *
 * @module
 */
import { at } from "../../at.ts";
import { CheckpointError, FileError, InternalError } from "../../errors.ts";

/** The stages of a Worker: started; the files of its rank are written; all of its work is done; failed. */
const STAGES = ["begun", "written", "done", "failed"] as const;
/** Name of a stage. */
export type Stage = typeof STAGES[number];

/** The error of a Worker that failed, as plain data. */
export type SaveFailure =
  | {
    readonly kind: "file";
    readonly path: string;
    readonly action: string;
    readonly detail: string;
    readonly code?: string;
  }
  | { readonly kind: "checkpoint"; readonly file: string; readonly detail: string }
  | { readonly kind: "bug"; readonly said: string };

const STAGE = 0;
const GIVEN_UP = 1;
const TEXT_LENGTH = 2;
const WRITTEN_BYTES = 2; // a float64, behind four words
const TEXT = 24;
const SIZE = 2 ** 14;

/** The shared words. */
export class SaveProgress {
  readonly buffer: SharedArrayBuffer;
  readonly #words: Int32Array;
  readonly #numbers: Float64Array;
  readonly #text: Uint8Array;

  /** @param buffer the buffer of the other side */
  constructor(buffer: SharedArrayBuffer = new SharedArrayBuffer(SIZE)) {
    this.buffer = buffer;
    this.#words = new Int32Array(buffer);
    this.#numbers = new Float64Array(buffer);
    this.#text = new Uint8Array(buffer, TEXT);
  }

  get stage(): Stage {
    return at(STAGES, Atomics.load(this.#words, STAGE), "stage");
  }

  /** True if the Worker has reached a stage; a Worker that failed reaches no other. */
  has(stage: Stage): boolean {
    return STAGES.indexOf(this.stage) >= STAGES.indexOf(stage);
  }

  /** True if the Worker has written everything, or has failed. */
  get hasEnded(): boolean {
    return this.has("done");
  }

  /** Bytes of this rank's files; known when they are written. */
  get writtenBytes(): number {
    return at(this.#numbers, WRITTEN_BYTES, "bytes written");
  }

  set writtenBytes(bytes: number) {
    this.#numbers[WRITTEN_BYTES] = bytes;
  }

  reach(stage: Stage): void {
    Atomics.store(this.#words, STAGE, STAGES.indexOf(stage));
    Atomics.notify(this.#words, STAGE);
  }

  /** Blocks until it has done all, or failed; returns false if it has come no further for `seconds`. */
  waitForEnd(seconds: number): boolean {
    while (!this.hasEnded) {
      const waited = Atomics.wait(this.#words, STAGE, STAGES.indexOf(this.stage), seconds * 1000);
      if (waited === "timed-out") return false;
    }
    return true;
  }

  fail(failure: SaveFailure): void {
    const bytes = new TextEncoder().encode(JSON.stringify(failure));
    this.#text.set(bytes);
    this.#words[TEXT_LENGTH] = bytes.length;
    this.reach("failed");
  }

  /** The Worker's error; `undefined` if it did not fail. */
  get error(): Error | undefined {
    if (this.stage !== "failed") return undefined;
    const length = at(this.#words, TEXT_LENGTH, "length of text");
    const failure: SaveFailure = JSON.parse(new TextDecoder().decode(this.#text.slice(0, length)));
    if (failure.kind === "file") return new FileError(failure.path, failure.action, failure.detail, failure.code);
    if (failure.kind === "checkpoint") return new CheckpointError(failure.file, failure.detail);
    return new InternalError(`the Worker that saves failed: ${failure.said}`);
  }

  /** Asks the Worker to end. */
  giveUp(): void {
    Atomics.store(this.#words, GIVEN_UP, 1);
    Atomics.notify(this.#words, GIVEN_UP);
  }

  /** True if the save was given up. */
  get isGivenUp(): boolean {
    return Atomics.load(this.#words, GIVEN_UP) !== 0;
  }

  /** Waits, but not when it was given up. */
  pause(ms: number): void {
    Atomics.wait(this.#words, GIVEN_UP, 0, ms);
  }
}

/** An error as plain data. */
export function failureOf(error: unknown): SaveFailure {
  if (error instanceof FileError) {
    const { path, action, detail, code } = error;
    return { kind: "file", path, action, detail, ...code === undefined ? {} : { code } };
  }
  if (error instanceof CheckpointError) return { kind: "checkpoint", file: error.file, detail: error.detail };
  const said = error instanceof Error ? error.stack ?? error.message : String(error);
  return { kind: "bug", said: said.slice(0, SIZE / 8) };
}
