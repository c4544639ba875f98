/**
 * What a rank tells the launcher, which owns the terminal: a status to be drawn below the log, text such as a help that is
 * not one rank's, or why the rank failed. It prints a control line in the form of an operating-system command of terminals, so the line is invisible where no
 * launcher reads it.
 *
 * @module
 */

/** Why a rank failed. */
export interface FailureRecord {
  /** Name of the error's class. */
  readonly name: string;
  readonly message: string;
  /** Where it was thrown, line by line; of errors that a program is mended for, not its settings or the machine. */
  readonly frames: readonly string[];
  /** Whether nobody catches it, so that the runtime's own report of it follows on standard error. */
  readonly uncaught: boolean;
  /** The rank that stopped this one; absent where it failed of itself. */
  readonly followed?: number | undefined;
  /** When, in milliseconds since the epoch. */
  readonly time: number;
}

/** What a control line says. An empty status takes the last one away; what is plain is shown with no rank before it. */
export type ControlLine =
  | { readonly status: string }
  | { readonly plain: string }
  /** The rank has saved what it had to, and only ends. */
  | { readonly over: true }
  | { readonly failure: FailureRecord };

const head = "\u001b]fullyshard;";
const tail = "\u0007";

/** What is said of a failure. A wrong configuration speaks for itself. */
export function failureText({ name, message, frames }: FailureRecord): string {
  return [name === "ConfigError" ? message : `${name}: ${message}`, ...frames].join("\n");
}

/** A control line, without a line break. */
export function encodeControlLine(line: ControlLine): string {
  return `${head}${JSON.stringify(line)}${tail}`;
}

/** What a line that a rank printed says, or undefined for an ordinary one. */
export function decodeControlLine(line: string): ControlLine | undefined {
  if (!line.startsWith(head) || !line.endsWith(tail)) return undefined;
  try {
    const said: unknown = JSON.parse(line.slice(head.length, -tail.length));
    return isControlLine(said) ? said : undefined;
  } catch {
    return undefined; // a program of the user's may print anything
  }
}

function isControlLine(said: unknown): said is ControlLine {
  if (typeof said !== "object" || said === null) return false;
  if ("status" in said) return typeof said.status === "string";
  if ("over" in said) return said.over === true;
  if ("plain" in said) return typeof said.plain === "string";
  if (!("failure" in said) || typeof said.failure !== "object" || said.failure === null) return false;
  const keys = ["name", "message", "frames", "uncaught", "time"];
  return keys.every((key) => Object.hasOwn(Object(said.failure), key));
}
