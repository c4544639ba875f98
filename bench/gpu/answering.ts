/**
 * Processes that stay and answer a line with a line: one side of a comparison.
 *
 * @module
 */
import { type ChildProcess, spawn } from "node:child_process";
import process from "node:process";
import { createInterface } from "node:readline";
import { ROOT, runOfItsOwn } from "../process.ts";
import { reasonIn } from "./row.ts";

/** The figures of one round of a case, by name; `ms` is always there. */
export type Seen = Readonly<Record<string, number | string>>;

/** A process that is asked for cases, until the time is over. */
export class Answering {
  readonly #child: ChildProcess;
  readonly #lines: AsyncIterator<string>;
  readonly #closed: Promise<void>;
  /** Resolves where the process could not be started; in Bun its output never ends then. */
  readonly #failed: Promise<{ readonly value: undefined; readonly done: true }>;
  readonly #timer: ReturnType<typeof setTimeout>;
  #errors = "";
  #isLate = false;

  /** @param until when it is killed, by `performance.now()` */
  constructor([program, ...args]: readonly [string, ...string[]], until: number) {
    const env = { ...process.env, ...runOfItsOwn() };
    const child = spawn(program, args, { cwd: ROOT, env, stdio: ["pipe", "pipe", "pipe"] });
    this.#child = child;
    this.#lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
    child.stderr.setEncoding("utf8").on("data", (text: string) => this.#errors += text);
    // The reason why a process has not begun, or does not read any more, is given where its answer is missing.
    child.stdin.on("error", () => {});
    this.#failed = new Promise((resolve) =>
      child.once("error", (error) => {
        this.#errors += `\n${error.name}: ${error.message}`;
        resolve({ value: undefined, done: true });
      })
    );
    const closed = new Promise<void>((resolve) => child.once("close", () => resolve()));
    this.#closed = Promise.race([closed, this.#failed.then(() => {})]);
    this.#timer = setTimeout(() => {
      this.#isLate = true;
      child.kill("SIGKILL");
    }, Math.max(0, until - performance.now()));
  }

  /** The figures of one round of a case, or the reason why there are none. */
  async ask(name: string): Promise<Seen | string> {
    if (this.#isLate) return "the time was over";
    this.#child.stdin?.write(`${name}\n`);
    for (;;) {
      const { value, done } = await Promise.race([this.#lines.next(), this.#failed]);
      if (done) {
        await this.#closed;
        return this.#isLate ? "the time was over" : `the process ended: ${reasonIn(this.#errors)}`;
      }
      if (!value.startsWith(`${name} `)) continue;
      const text = value.slice(name.length + 1);
      if (!text.startsWith("{")) return text.replace(/^cannot: /, "");
      const seen: Seen = JSON.parse(text);
      return seen;
    }
  }

  /** Lets it end, so that it gives back what it has on the card. */
  async end(): Promise<void> {
    this.#child.stdin?.end();
    await this.#closed;
    clearTimeout(this.#timer);
  }
}
