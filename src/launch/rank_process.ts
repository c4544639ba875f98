/**
 * The process of a rank. In a run that may start its ranks again, a process takes one place after another: it says that it waits, and the
 * launcher gives it the variables of its next place as a line of its standard input (see `runtime/places.ts`).
 *
 * @module
 */
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import process from "node:process";
import { decodeControlLine } from "../runtime/control_line.ts";
import { LineReader } from "../runtime/lines.ts";
import type { OutputName } from "../runtime/terminal.ts";
import type { RankCommand, Variables } from "./command.ts";

/** Both outputs of a process. */
export const OUTPUTS: readonly OutputName[] = ["stdout", "stderr"];

/** Receives what a process does in one place. */
export interface PlaceListener {
  /** Takes the bytes of an output as they are. */
  bytes(stream: OutputName, bytes: Uint8Array): void;
  /** Takes whole lines of an output. */
  lines(stream: OutputName, lines: readonly string[]): void;
  /** The process has left its place, and waits for another one. Late lines may follow. */
  left(): void;
  /** The process could not be started. */
  unstarted(error: Error): void;
  /** The process has ended; its last lines may follow. */
  exited(code: number | null, signal: NodeJS.Signals | null): void;
  /** All of its output has come. */
  closed(): void;
}

/** Receives nothing. */
const NOBODY: PlaceListener = {
  bytes(): void {},
  lines(): void {},
  left(): void {},
  unstarted(): void {},
  exited(): void {},
  closed(): void {},
};

/** How a process is started. */
export interface ProcessStart {
  readonly command: RankCommand;
  readonly variables: Variables;
  /** True if it may take further places. */
  readonly keeps: boolean;
  /** True if it waits for its first place. */
  readonly isSpare: boolean;
}

/** A process of a rank. */
export class RankProcess {
  readonly #child: ChildProcess;
  #listener: PlaceListener = NOBODY;
  /** How often each output has said that the process waits; a spare process says it once before its first place. */
  readonly #waits: Record<OutputName, number>;
  /** Places that it has left. */
  #left = 0;
  #isOver = false;

  /** @throws {Error} as `spawn`, for arguments that no program can take */
  constructor({ command, variables, keeps, isSpare }: ProcessStart) {
    const child = spawn(command.program, [...command.args], {
      env: variables,
      stdio: [keeps ? "pipe" : "ignore", "pipe", "pipe"],
      detached: true,
    });
    this.#child = child;
    this.#waits = { stdout: isSpare ? -1 : 0, stderr: isSpare ? -1 : 0 };
    child.stdin?.on("error", () => {}); // the process has ended, which its end tells
    for (const stream of OUTPUTS) {
      const reader = new LineReader();
      child[stream]?.on("data", (bytes: Uint8Array) => {
        this.#listener.bytes(stream, bytes);
        this.#take(stream, reader.push(bytes));
      });
      child[stream]?.once("end", () => this.#take(stream, reader.end()));
    }
    child.once("error", (error) => {
      this.#isOver = true;
      this.#listener.unstarted(error);
    });
    child.once("exit", (code, signal) => {
      this.#isOver = true;
      this.#listener.exited(code, signal);
    });
    child.once("close", () => this.#listener.closed());
  }

  /** Undefined if it was not started. */
  get pid(): number | undefined {
    return this.#child.pid;
  }

  /** True if it has ended, or could not be started. */
  get isOver(): boolean {
    return this.#isOver;
  }

  /** Gives all that it does from now on to a listener. */
  follow(listener: PlaceListener): void {
    this.#listener = listener;
  }

  /** Gives a process that waits, or is about to, its next place. */
  give(variables: Variables): void {
    this.#child.stdin?.write(`${JSON.stringify(variables)}\n`);
  }

  pause(stream: OutputName): void {
    this.#child[stream]?.pause();
  }

  resume(stream: OutputName): void {
    this.#child[stream]?.resume();
  }

  /** Signals its process group; a group that is gone is no error. */
  signal(signal: NodeJS.Signals): void {
    const { pid } = this.#child;
    if (pid === undefined) return;
    try {
      process.kill(-pid, signal);
    } catch (error) {
      if (!(error instanceof Error)) throw error;
      // Deno lets only a process that may start every program send signals; the shell is one that it may start.
      if (error.name === "NotCapable") signalByShell(pid, signal);
      else if (!("code" in error && error.code === "ESRCH")) throw error;
    }
  }

  #take(stream: OutputName, lines: readonly string[]): void {
    if (lines.length > 0) this.#listener.lines(stream, lines);
    for (const line of lines) if (isWait(line)) this.#waits[stream]++;
    // Each output says it behind all that it says of the place.
    if (Math.min(this.#waits.stdout, this.#waits.stderr) <= this.#left) return;
    this.#left++;
    this.#listener.left();
  }
}

function isWait(line: string): boolean {
  const said = decodeControlLine(line);
  return said !== undefined && "waits" in said;
}

function signalByShell(group: number, signal: NodeJS.Signals): void {
  const command = 'kill -s "$0" -- "-$1"';
  spawnSync("/bin/sh", ["-c", command, signal.replace(/^SIG/, ""), String(group)], { stdio: "ignore" });
}
