/**
 * The output of a rank in one place: lines for the terminal, bytes for files, and messages to the launcher.
 *
 * @module
 */
import process from "node:process";
import { type ControlLine, decodeControlLine, failureText } from "../runtime/control_line.ts";
import { type OutputName, type StatusTerminal, styled } from "../runtime/terminal.ts";
import type { RankProcess } from "./rank_process.ts";

/** Number of last lines kept for each rank, as many as a runtime's report of an error may have. */
const NUM_LAST_LINES = 40;

/** Destinations of a rank's output. */
export interface OutputPlan {
  /** World rank, which is shown. */
  readonly rank: number;
  readonly shown: Readonly<Record<OutputName, boolean>>;
  /** For each stream, takes its bytes if it is kept in a file. */
  readonly keep: Readonly<Record<OutputName, ((bytes: Uint8Array) => void) | undefined>>;
}

/** Passes the output of a rank on. */
export class RankOutput {
  /** The last lines of standard error. */
  readonly lastLines: string[] = [];
  readonly #plan: OutputPlan;
  readonly #process: RankProcess;
  readonly #terminal: StatusTerminal;
  readonly #onMessage: (message: ControlLine) => void;
  readonly #keep: Record<OutputName, ((bytes: Uint8Array) => void) | undefined>;
  /** Set where the runtime's own report of an error that the rank reported already is dropped: the end shows one message for all ranks. */
  readonly #reportFollows: Record<OutputName, boolean> = { stdout: false, stderr: false };
  readonly #waits: Record<OutputName, boolean> = { stdout: false, stderr: false };

  /** @param onMessage takes messages that are not about output */
  constructor(
    plan: OutputPlan,
    process: RankProcess,
    terminal: StatusTerminal,
    onMessage: (message: ControlLine) => void,
  ) {
    this.#plan = plan;
    this.#process = process;
    this.#terminal = terminal;
    this.#onMessage = onMessage;
    this.#keep = { ...plan.keep };
  }

  /** Keeps bytes as they are. */
  bytes(stream: OutputName, bytes: Uint8Array): void {
    try {
      this.#keep[stream]?.(bytes);
    } catch (error) {
      // A full disk, or a limit on files, does not end a training.
      this.#keep[stream] = undefined;
      const why = error instanceof Error ? error.message : String(error);
      const what = `rank ${this.#plan.rank}'s ${stream} is not kept from here on: ${why}`;
      this.#terminal.lines("stderr", [`fullyshard: ${what}`]);
    }
  }

  /** Shows lines, and hands messages on. */
  lines(stream: OutputName, lines: readonly string[]): void {
    const shown = this.#plan.shown[stream];
    const log: string[] = [];
    for (const line of lines) {
      const said = decodeControlLine(line);
      if (said === undefined) {
        if (!this.#reportFollows[stream]) log.push(line);
      } else if ("plain" in said) this.#terminal.lines(stream, shown ? [said.plain] : []);
      else if ("status" in said) {
        if (shown) this.#terminal.status(said.status);
      } else {
        if ("failure" in said) {
          this.#reportFollows[stream] = said.failure.uncaught;
          this.bytes(stream, new TextEncoder().encode(`${failureText(said.failure)}\n`));
        }
        this.#onMessage(said);
      }
    }
    if (stream === "stderr") {
      this.lastLines.push(...log);
      this.lastLines.splice(0, this.lastLines.length - NUM_LAST_LINES);
    }
    const speaker = styled("dim", `[rank${this.#plan.rank}]`, this.#terminal.hasColors(stream));
    const texts = log.map((line) => `${speaker} ${line}`);
    if (!shown || this.#terminal.lines(stream, texts)) return;
    // If the reader of this output is slow, the rank waits, so that its output does not pile up in memory.
    if (this.#waits[stream]) return;
    this.#waits[stream] = true;
    this.#process.pause(stream);
    process[stream].once("drain", () => {
      this.#waits[stream] = false;
      this.#process.resume(stream);
    });
  }
}
