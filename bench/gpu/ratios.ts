/**
 * Ratios of our times to PyTorch's on the same card: both are processes that stay, so that compilation is over before the first
 * round, and take turns.
 *
 * @module
 */
import { type ChildProcess, spawn } from "node:child_process";
import { createInterface } from "node:readline";
import process from "node:process";
import { rank, ROOT } from "../process.ts";
import { median } from "../figures.ts";
import type { Row } from "./row.ts";

const CASES = [
  ...["gemm", "attention:flash", "attention:cudnn", "attention-backward:flash", "attention-backward:cudnn"],
  ...["rms-norm", "cross-entropy", "adamw"],
  ...["step:eager-flash", "step:eager", "step:compiled"],
];
const ROUNDS = 5;

/** A process that answers a line with a line. */
class Answering {
  readonly #child: ChildProcess;
  readonly #lines: AsyncIterator<string>;

  constructor([program, ...args]: readonly [string, ...string[]]) {
    this.#child = spawn(program, args, { cwd: ROOT, env: process.env, stdio: ["pipe", "pipe", "inherit"] });
    const { stdout } = this.#child;
    if (stdout === null) throw new Error("a process without an output");
    this.#lines = createInterface({ input: stdout })[Symbol.asyncIterator]();
  }

  /** Milliseconds of one round of a case, or why there are none. */
  async ask(name: string): Promise<number | string> {
    this.#child.stdin?.write(`${name}\n`);
    for (;;) {
      const { value, done } = await this.#lines.next();
      if (done) return "the process ended";
      if (!value.startsWith(`${name} `)) continue;
      const text = value.slice(name.length + 1);
      return Number.isFinite(Number(text)) ? Number(text) : text.replace(/^cannot: /, "");
    }
  }

  end(): void {
    this.#child.stdin?.end();
  }

  kill(): void {
    this.#child.kill("SIGKILL");
  }
}

/** How the ratios are measured. */
export interface RatioSetting {
  readonly runtime: "bun" | "deno";
  readonly size: string;
  /** The Python that has PyTorch. */
  readonly python: string;
  /** When there is no time left, by `performance.now()`. */
  readonly until: number;
}

/** Measures, and tells a line for each case. */
export async function ratios({ runtime, size, python, until }: RatioSetting, tell: (row: Row) => void): Promise<void> {
  const ours = new Answering(rank(runtime, "bench/gpu/timed.ts", size));
  const theirs = new Answering([python, "bench/peers/gpu.py", size]);
  const timer = setTimeout(() => [ours, theirs].forEach((side) => side.kill()), Math.max(0, until - performance.now()));
  try {
    for (const name of CASES) tell(await ratioOf(name, ours, theirs));
  } finally {
    clearTimeout(timer);
    ours.end();
    theirs.end();
  }
}

async function ratioOf(name: string, ours: Answering, theirs: Answering): Promise<Row> {
  const [own, other]: [number[], number[]] = [[], []];
  for (let round = 0; round < ROUNDS; round++) {
    const [a, b] = [await ours.ask(name), await theirs.ask(name)];
    const reason = typeof a === "string" ? `ours: ${a}` : typeof b === "string" ? `PyTorch: ${b}` : undefined;
    if (reason !== undefined) return { case: name, outcome: "cannot", reason };
    own.push(Number(a));
    other.push(Number(b));
  }
  const [oursMs, theirsMs] = [median(own) ?? NaN, median(other) ?? NaN];
  return { case: name, outcome: "passed", figures: { oursMs, theirsMs, ratio: theirsMs / oursMs } };
}
