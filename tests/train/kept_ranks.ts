/**
 * Ranks of `tiny.ts` as processes that are kept from one training to the next, without a launcher: their modules are loaded and
 * compiled once a test file. For tests of what a training gives. Tests of the launcher, of signals, of faults and of exit codes start
 * processes of their own (`runs.ts`).
 *
 * @module
 */
import type { ChildProcess } from "node:child_process";
import { RUNTIME, startRank } from "../support/rank_process.ts";
import type { Ended } from "./runs.ts";

/** Begins the line that ends a training's output; the exit code follows. */
export const END = "training ended: ";

/** A training, as one rank is told of it. */
export interface Order {
  readonly argv: readonly string[];
  /** Environment variables to set. */
  readonly variables: Readonly<Record<string, string>>;
}

/** Ranks that are kept until they are disposed of. */
export interface KeptRanks extends Disposable {
  /** Trains with some arguments on some ranks; gives the greatest exit code and the output of all ranks. */
  readonly run: (argv: readonly string[], options?: { readonly ranks?: number }) => Promise<Ended>;
}

/** Starts no process yet: the first trainings do. @param runtime runs the ranks */
export function keepRanks(runtime: "bun" | "deno" = RUNTIME): KeptRanks {
  const idle: ChildProcess[] = [];
  const script = new URL("scripts/kept_rank.ts", import.meta.url);
  const trains = async (order: Order): Promise<Omit<Ended, "seconds">> => {
    const child = idle.pop() ?? startRank(script, [], { runtime }).child;
    const outputs = Promise.all([outputOf(child, "stdout"), outputOf(child, "stderr")]);
    child.stdin?.write(`${JSON.stringify(order)}\n`);
    const [{ text: stdout, code }, { text: stderr }] = await outputs;
    if (code !== null) idle.push(child);
    return { code, stdout, stderr };
  };
  return {
    async run(argv, { ranks = 2 } = {}): Promise<Ended> {
      const began = performance.now();
      const id = crypto.randomUUID();
      const ends = await Promise.all(Array.from({ length: ranks }, (_, rank) => {
        const variables = { RANK: String(rank), WORLD_SIZE: String(ranks), FULLYSHARD_RUN_ID: id };
        return trains({ argv, variables });
      }));
      return {
        code: Math.max(...ends.map(({ code }) => code ?? 1)),
        stdout: ends.map(({ stdout }) => stdout).join(""),
        stderr: ends.map(({ stderr }) => stderr).join(""),
        seconds: (performance.now() - began) / 1000,
      };
    },
    [Symbol.dispose](): void {
      for (const child of idle.splice(0)) child.stdin?.end();
    },
  };
}

/** The output of a process up to the end of its training; the code is null where the process ended before. */
function outputOf(child: ChildProcess, name: "stdout" | "stderr"): Promise<{ text: string; code: number | null }> {
  const stream = child[name];
  if (stream === null) throw new Error("Its outputs are no pipes");
  return new Promise((resolve) => {
    let text = "";
    const end = (code: number | null, said: string): void => {
      stream.off("data", take);
      child.off("close", over);
      resolve({ text: said, code });
    };
    const over = (): void => end(null, text);
    const take = (data: unknown): void => {
      text += String(data);
      const at = text.lastIndexOf(END);
      if (at >= 0 && text.endsWith("\n")) end(Number(text.slice(at + END.length)), text.slice(0, at));
    };
    stream.on("data", take);
    child.once("close", over);
  });
}
