/**
 * Messages of a rank to the launcher, which owns the terminal: a status to show below the log, text that does not belong to one
 * rank, such as a help, or the reason why the rank failed. A message is printed as an operating-system command of terminals, so
 * it is invisible without a launcher.
 *
 * @module
 */

/** The failure of a rank. */
export interface FailureRecord {
  /** Name of the error's class. */
  readonly name: string;
  readonly message: string;
  /** Stack frames; only for errors that are faults of a program, and not of its settings or the machine. */
  readonly frames: readonly string[];
  /** True if no code catches it, so that the runtime's own report follows on standard error. */
  readonly uncaught: boolean;
  /** The rank that stopped this rank; undefined if it failed by itself. */
  readonly followed?: number | undefined;
  /** Time in milliseconds since the epoch. */
  readonly time: number;
}

/** A message of a rank. An empty status removes the last one; plain text is shown without a rank. */
export type ControlLine =
  | { readonly status: string }
  | { readonly plain: string }
  /** The rank has saved everything, and only has to end. */
  | { readonly over: true }
  /** The numbers of ranks, from the fewest to the most, that the run's batch can be divided among, and its output folder. */
  | { readonly worldSizes: readonly number[]; readonly out: string }
  /** The first step is taken: ranks that are started later go on from what this run has left. */
  | { readonly begun: true }
  /** The state of a step is kept in this host's memory. */
  | { readonly kept: number }
  /** All ranks leave at this step's border, for others to go on. */
  | { readonly regroups: true }
  /** The process of a rank that fails with others, or leaves for them, can take another place. */
  | { readonly stays: true }
  /** This process has left its place, and waits for another one. Both outputs say it. */
  | { readonly waits: true }
  | { readonly failure: FailureRecord };

const head = "\u001b]fullyshard;";
const tail = "\u0007";

/** A failure in words; a wrong configuration is reported without its class. */
export function failureText({ name, message, frames }: FailureRecord): string {
  return [name === "ConfigError" ? message : `${name}: ${message}`, ...frames].join("\n");
}

/** A control line, without a line break. */
export function encodeControlLine(line: ControlLine): string {
  return `${head}${JSON.stringify(line)}${tail}`;
}

/** The message in a line that a rank printed; undefined for an ordinary line. */
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
  if ("kept" in said) return Number.isSafeInteger(said.kept);
  if ("begun" in said) return said.begun === true;
  if ("regroups" in said) return said.regroups === true;
  if ("stays" in said) return said.stays === true;
  if ("waits" in said) return said.waits === true;
  if ("worldSizes" in said) {
    if (!("out" in said) || typeof said.out !== "string") return false;
    return Array.isArray(said.worldSizes) && said.worldSizes.every((size) => Number.isInteger(size) && size > 0);
  }
  if ("plain" in said) return typeof said.plain === "string";
  if (!("failure" in said) || typeof said.failure !== "object" || said.failure === null) return false;
  const keys = ["name", "message", "frames", "uncaught", "time"];
  return keys.every((key) => Object.hasOwn(Object(said.failure), key));
}
