/**
 * Tells ranks that wait for others to join that a rank has ended. The launcher knows it at once; the ranks, also on other hosts,
 * would wait until their timeout. A process in the ended rank's place tells them (see `stand_in.ts`), as the launcher itself has
 * no foreign functions and no permission for them.
 *
 * @module
 */
import { type ChildProcess, spawn } from "node:child_process";
import { fileURLToPath } from "node:url";
import { failureText } from "../runtime/control_line.ts";
import { unstyled } from "../runtime/terminal.ts";
import { shown } from "../words.ts";
import type { RankCommand, Variables } from "./command.ts";
import type { RankFailure } from "./failures.ts";

/** Path or URL of the program that joins in the place of an ended rank. */
export function standInScript(): string {
  const url = new URL("./stand_in.ts", import.meta.url);
  return url.protocol === "file:" ? fileURLToPath(url) : url.href;
}

export type RankEnd = Pick<RankFailure, "rank" | "exitCode" | "detail" | "lastLines" | "record">;

/** Ranks that end in order do so within about this time, and no rank needs a message. */
const ORDERLY_MS = 300;
/** Longest text, which must fit in a few kilobytes of the ranks' memory. */
const LONGEST = 3000;

/** Longest times that the launcher waits for the stand-in when all ranks of its host have ended: after a failure, and after none. */
const [FAILED_MS, ORDERLY_END_MS] = [2000, 1000];

/**
 * A process that joins the world in the place of the first rank that ended, and tells the others why. If that rank had joined, all
 * ranks had: then it tells nobody.
 */
export class StandIn implements Disposable {
  readonly #commandOf: (reason: string) => RankCommand;
  readonly #variablesOf: (rank: number) => Variables | undefined;
  readonly #numHosts: number;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #process: ChildProcess | undefined;
  #end: RankEnd | undefined;

  /**
   * @param numHosts number of hosts of the run
   * @param commandOf the command of a process that tells a reason
   * @param variablesOf the variables of a rank
   */
  constructor(
    numHosts: number,
    commandOf: (reason: string) => RankCommand,
    variablesOf: (rank: number) => Variables | undefined,
  ) {
    this.#numHosts = numHosts;
    this.#commandOf = commandOf;
    this.#variablesOf = variablesOf;
  }

  tell(end: RankEnd): void {
    if (this.#end !== undefined) return;
    this.#end = end;
    this.#timer = setTimeout(() => this.#start(end), end.exitCode === 0 ? ORDERLY_MS : 0);
  }

  /**
   * Called when all ranks of this host have ended, while ranks of other hosts may wait. Resolves when they know it, or soon
   * after.
   */
  async finish(): Promise<void> {
    const end = this.#end;
    if (this.#numHosts === 1 || end === undefined) return;
    clearTimeout(this.#timer);
    if (this.#process === undefined) this.#start(end);
    const child = this.#process;
    if (child === undefined || child.exitCode !== null || child.pid === undefined) return;
    await new Promise<void>((resolve) => {
      child.once("exit", () => resolve());
      child.once("error", () => resolve());
      this.#timer = setTimeout(resolve, end.exitCode === 0 ? ORDERLY_END_MS : FAILED_MS);
    });
  }

  #start(end: RankEnd): void {
    const { program, args } = this.#commandOf(reasonOf(end));
    const child = spawn(program, [...args], { env: this.#variablesOf(end.rank), stdio: ["pipe", "ignore", "ignore"] });
    // If it cannot be started, ranks wait until their timeout, as without a launcher.
    child.once("error", () => {});
    child.stdin?.once("error", () => {});
    this.#process = child;
  }

  /** Called when all ranks have ended. */
  [Symbol.dispose](): void {
    clearTimeout(this.#timer);
    this.#process?.stdin?.end();
    this.#process?.unref();
  }
}

/** The end of a rank, in words for the others. */
function reasonOf({ detail, lastLines, record }: RankEnd): string {
  if (record !== undefined) return `it failed before it joined: ${shown(failureText(record))}`.slice(0, LONGEST);
  const words = lastLines.slice(-12).map((line) => `    ${shown(unstyled(line))}`).join("\n");
  return `it ${detail} before it joined.${words === "" ? "" : ` Its last lines on stderr:\n${words.slice(-LONGEST)}`}`;
}
