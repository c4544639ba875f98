/**
 * Processes that wait for a place in a run whose ranks may be started again: those that are left of the last start, and a spare one for
 * the place of one that is lost.
 *
 * @module
 */
import { placeVariables, type RankCommand, spareVariables, type Variables } from "./command.ts";
import { RankProcess } from "./rank_process.ts";

/** Waiting processes. */
export class RankPool implements Disposable {
  readonly #command: RankCommand;
  #waiting: RankProcess[] = [];
  #spare: RankProcess | undefined;
  #isOver = false;

  /** @param command of every rank */
  constructor(command: RankCommand) {
    this.#command = command;
  }

  /** Adds a process that has left its place. */
  add(process: RankProcess): void {
    this.#waiting.push(process);
  }

  /** A process for a place: one that waits, else the spare one, else a new one. @throws {Error} as `spawn` */
  take(variables: Variables): RankProcess {
    this.#waiting = this.#waiting.filter(({ isOver }) => !isOver);
    const kept = this.#waiting.shift() ?? this.#takeSpare();
    kept?.give(placeVariables(variables));
    return kept ?? new RankProcess({ command: this.#command, variables, keeps: true, isSpare: false });
  }

  /** Starts a spare process where there is none. @param variables those of a rank */
  prepare(variables: Variables): void {
    if (this.#isOver || (this.#spare !== undefined && !this.#spare.isOver) || this.#waiting.length > 0) return;
    const start = { command: this.#command, variables: spareVariables(variables), keeps: true, isSpare: true };
    this.#spare = new RankProcess(start);
  }

  /** Ends all processes that wait. */
  [Symbol.dispose](): void {
    this.#isOver = true;
    for (const process of [...this.#waiting.splice(0), this.#takeSpare()]) process?.signal("SIGKILL");
  }

  #takeSpare(): RankProcess | undefined {
    const spare = this.#spare;
    this.#spare = undefined;
    return spare?.isOver === true ? undefined : spare;
  }
}
