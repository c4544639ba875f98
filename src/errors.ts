/**
 * Every error class of the library. Each extends the nearest built-in and carries the facts as fields, so a
 * caller can act on them; the sentence is written once, here or where the error is made. What a message cites of files and of
 * other programs cannot control the terminal that shows it.
 *
 * @module
 */
import { countOf, formatBytes, shown } from "./words.ts";

/** Shapes that do not fit an operation. */
export class ShapeError extends RangeError {
  /** The class's name. */
  override readonly name = "ShapeError";
  /** The operation that refused. */
  readonly op: string;
  /** The shapes that do not fit. */
  readonly shapes: readonly (readonly number[])[];

  /**
   * Writes the sentence from the facts.
   *
   * @param detail what must hold, e.g. `inner dims must match`
   */
  constructor(op: string, detail: string, ...shapes: readonly (readonly number[])[]) {
    const list = shapes.map((shape) => `[${shape.join(", ")}]`).join(" and ");
    super(shown(`Cannot apply '${op}' as ${detail}: shapes ${list}`));
    this.op = op;
    this.shapes = shapes;
  }
}

/** A dtype that an operation does not take. */
export class DTypeError extends TypeError {
  /** The class's name. */
  override readonly name = "DTypeError";
  /** The operation that refused. */
  readonly op: string;
  /** Names of the dtypes it was given. */
  readonly dtypes: readonly string[];

  /**
   * Writes the sentence from the facts.
   *
   * @param detail what must hold
   */
  constructor(op: string, detail: string, ...dtypes: readonly string[]) {
    super(shown(`Cannot apply '${op}' as ${detail}: dtypes ${dtypes.join(" and ")}`));
    this.op = op;
    this.dtypes = dtypes;
  }
}

/** A tensor, buffer, group or device used after it was disposed. */
export class UseAfterDisposeError extends ReferenceError {
  /** The class's name. */
  override readonly name = "UseAfterDisposeError";

  /**
   * Made with a message, whose control characters are shown as escapes.
   *
   * @param message what is wrong, and the remedy
   */
  constructor(message: string, options?: ErrorOptions) {
    super(shown(message), options);
  }
}

/** An argument of a public function that cannot be right, whatever the data. */
export class ArgumentError extends RangeError {
  /** The class's name. */
  override readonly name = "ArgumentError";

  /**
   * Made with a message, whose control characters are shown as escapes.
   *
   * @param message what is wrong, and the remedy
   */
  constructor(message: string, options?: ErrorOptions) {
    super(shown(message), options);
  }
}

/** A C function that returned a failure. */
export class NativeError extends Error {
  /** The class's name. */
  override readonly name = "NativeError";
  /** The library it came from, e.g. `libc`. */
  readonly library: string;
  /** The call, e.g. `posix_fallocate`. */
  readonly call: string;
  /** The status it returned, or the errno that it set. */
  readonly status: number;
  /** The status' symbolic name, e.g. `ENOSPC`, where it has one. */
  readonly code: string | undefined;

  /**
   * Writes the sentence from the facts.
   *
   * @param detail the status in words, with the arguments that matter
   */
  constructor(library: string, call: string, status: number, detail: string, code?: string) {
    super(shown(`${library} '${call}' failed with status ${status}: ${detail}`));
    this.library = library;
    this.call = call;
    this.status = status;
    this.code = code;
  }
}

/** A shared library that could not be opened. */
export class LibraryNotFoundError extends Error {
  /** The class's name. */
  override readonly name = "LibraryNotFoundError";
  /** The library's name. */
  readonly library: string;
  /** Each path tried, with the reason that it failed. */
  readonly tried: readonly { readonly path: string; readonly reason: string }[];

  /**
   * Writes the sentence from the facts.
   *
   * @param remedy how to install it
   */
  constructor(library: string, tried: LibraryNotFoundError["tried"], remedy: string) {
    const lines = tried.map(({ path, reason }) => `  ${path}: ${reason}`).join("\n");
    super(shown(`Cannot open ${library}. ${remedy}\nPaths tried:\n${lines}`));
    this.library = library;
    this.tried = tried;
  }
}

/** A file or directory that could not be read or written. */
export class FileError extends Error {
  /** The class's name. */
  override readonly name = "FileError";
  /** The file or directory. */
  readonly path: string;
  /** The action that failed, e.g. `write`. */
  readonly action: string;
  /** The reason of the failure, and the remedy. */
  readonly detail: string;
  /** The system's error, e.g. `ENOSPC`; undefined when it gave none. */
  readonly code: string | undefined;

  /**
   * Writes the sentence from the facts.
   *
   * @param action what was being done, e.g. `write`
   * @param detail why it failed, and the remedy
   */
  constructor(path: string, action: string, detail: string, code?: string, options?: ErrorOptions) {
    super(shown(`Cannot ${action} '${path}': ${detail}`), options);
    this.path = path;
    this.action = action;
    this.detail = detail;
    this.code = code;
  }
}

/** Facts of a collective that failed. */
export interface CollectiveFacts {
  /** Name of the process group. */
  readonly group: string;
  /** The group in words, with its axis and its ranks, for messages. @default its name alone */
  readonly place?: string;
  /** The rank that reports. */
  readonly rank: number;
  /** The collective, with its label, e.g. `all-gather 'layers.7' (forward), 2949120 bytes`. */
  readonly op: string;
  /** Sequence number in the group, from 1. */
  readonly sequence: number;
  /** The rank that failed, or found the failure, where it is another than the one that reports. */
  readonly stoppedBy?: number;
}

/** A collective that could not complete: a dead or late peer, or peers that called something else. */
export class CollectiveError extends Error {
  /** The class's name. */
  override readonly name = "CollectiveError";
  /** The collective that was in progress. */
  readonly facts: CollectiveFacts;

  /**
   * Writes the sentence from the facts.
   *
   * @param detail what went wrong, naming the ranks
   */
  constructor(facts: CollectiveFacts, detail: string, options?: ErrorOptions) {
    const { rank, op, sequence, group, place = `group '${group}'` } = facts;
    super(shown(`Rank ${rank} in ${op} (${place}, call ${sequence}): ${detail}`), options);
    this.facts = facts;
  }
}

/** Ranks that could not find each other, or a launch environment that makes no sense. */
export class RendezvousError extends Error {
  /** The class's name. */
  override readonly name = "RendezvousError";
  /** The rank that gave up, where it is another than the one that reports. */
  readonly stoppedBy: number | undefined;

  /**
   * Writes the sentence from the facts.
   *
   * @param message what went wrong, and the remedy
   */
  constructor(message: string, stoppedBy?: number) {
    super(shown(message));
    this.stoppedBy = stoppedBy;
  }
}

/** One thing wrong with a configuration. */
export interface ConfigProblem {
  /** Dotted path of the key, or the flag. */
  readonly path: string;
  /** The values that are allowed. */
  readonly expected: string;
  /** The value that was found. */
  readonly got: string;
  /** The place, e.g. `run.yaml:3:7`. */
  readonly where?: string;
}

/** A configuration with at least one problem; all are listed. */
export class ConfigError extends TypeError {
  /** The class's name. */
  override readonly name = "ConfigError";
  /** All problems, in the order found. */
  readonly problems: readonly ConfigProblem[];

  /** All problems at once. */
  constructor(problems: readonly ConfigProblem[]) {
    const lines = problems.map(({ path, expected, got, where }) =>
      `  ${where === undefined ? "" : `${where}: `}${path}: expected ${expected}, got ${got}`
    );
    super(shown(`Configuration has ${countOf(problems.length, "problem")}:\n${lines.join("\n")}`));
    this.problems = problems;
  }
}

/** A checkpoint, safetensors file or Hugging Face directory that is damaged or does not fit. */
export class CheckpointError extends Error {
  /** The class's name. */
  override readonly name = "CheckpointError";
  /** The file or directory. */
  readonly file: string;
  /** Expected, found and remedy. */
  readonly detail: string;
  /** The tensor (FQN) concerned, where there is one. */
  readonly tensor: string | undefined;

  /**
   * Writes the sentence from the facts.
   *
   * @param detail expected, found and remedy
   */
  constructor(file: string, detail: string, tensor?: string, options?: ErrorOptions) {
    super(shown(`${file}: ${tensor === undefined ? "" : `tensor '${tensor}': `}${detail}`), options);
    this.file = file;
    this.detail = detail;
    this.tensor = tensor;
  }
}

/** Device or host memory that ran out. */
export class OutOfMemoryError extends RangeError {
  /** The class's name. */
  override readonly name = "OutOfMemoryError";
  /** Bytes asked for. */
  readonly asked: number;
  /** Bytes in use when it was asked. */
  readonly inUse: number;
  /** Bytes there are in all. */
  readonly capacity: number;

  /**
   * Writes the sentence from the facts.
   *
   * @param where the memory, e.g. `cpu:0` or `/dev/shm`
   * @param detail largest owners, and the remedy
   */
  constructor(where: string, asked: number, inUse: number, capacity: number, detail: string) {
    const [wanted, used, all] = [asked, inUse, capacity].map(formatBytes);
    super(shown(`Out of memory on ${where}: asked for ${wanted} with ${used} of ${all} in use. ${detail}`));
    this.asked = asked;
    this.inUse = inUse;
    this.capacity = capacity;
  }
}

/** A value that is not finite where training cannot go on. */
export class NonFiniteError extends RangeError {
  /** The class's name. */
  override readonly name = "NonFiniteError";

  /**
   * Made with a message, whose control characters are shown as escapes.
   *
   * @param message what is wrong, and the remedy
   */
  constructor(message: string, options?: ErrorOptions) {
    super(shown(message), options);
  }
}

/** An operation that a device does not have for a dtype, or a platform that is not supported. */
export class UnsupportedError extends Error {
  /** The class's name. */
  override readonly name = "UnsupportedError";

  /**
   * Made with a message, whose control characters are shown as escapes.
   *
   * @param message what is wrong, and the remedy
   */
  constructor(message: string, options?: ErrorOptions) {
    super(shown(message), options);
  }
}

/** Work that was to be captured as a graph of a device, and does what cannot be. */
export class GraphCaptureError extends Error {
  /** The class's name. */
  override readonly name = "GraphCaptureError";
  /** The work that was to be captured, e.g. `a training step`. */
  readonly work: string;

  /**
   * Writes the sentence from the facts.
   *
   * @param detail what was met, and what to do
   */
  constructor(work: string, detail: string, options?: ErrorOptions) {
    super(shown(`Cannot capture ${work}: ${detail}`), options);
    this.work = work;
  }
}

/** Accesses to device memory in no defined order, whose results could differ from run to run. */
export class HazardError extends Error {
  /** The class's name. */
  override readonly name = "HazardError";

  /** Made with a message, whose control characters are shown as escapes: what is wrong, and the remedy. */
  constructor(message: string, options?: ErrorOptions) {
    super(shown(message), options);
  }
}

/** Copies of the same values that differ between ranks. */
export class DivergenceError extends Error {
  /** The class's name. */
  override readonly name = "DivergenceError";

  /** Made with a message, whose control characters are shown as escapes. */
  constructor(message: string) {
    super(shown(message));
  }
}

/** A bug of this library. */
export class InternalError extends Error {
  /** The class's name. */
  override readonly name = "InternalError";

  /** Made with the invariant that does not hold. */
  constructor(detail: string) {
    super(shown(`Internal: ${detail}`));
  }
}

/** A class of errors, whatever its constructor takes. */
type ErrorClass = abstract new (...facts: never[]) => Error;

/** Wrong arguments, settings or files, and values that a file cannot hold: a command ends with 2 and one sentence. */
export const USAGE_ERRORS: readonly ErrorClass[] = [
  CheckpointError,
  ConfigError,
  FileError,
  NonFiniteError,
  UnsupportedError,
];

/** Errors that settings, files or machines cause: the place in the program would be noise. */
export const OUTER_ERRORS: readonly ErrorClass[] = [
  ...USAGE_ERRORS,
  CollectiveError,
  LibraryNotFoundError,
  NativeError,
  OutOfMemoryError,
  RendezvousError,
];

/** True if an error is of one of the classes. */
export function isOneOf(error: unknown, classes: readonly ErrorClass[]): error is Error {
  return classes.some((kind) => error instanceof kind);
}
