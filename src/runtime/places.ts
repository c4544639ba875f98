/**
 * The ranks that one process becomes, first one and then the next, in a run that starts ranks again after failures. After a failure of
 * another rank the process trains again from the state that was kept. A new process would load and compile the same code first.
 *
 * Note [A process that stays]
 * 1. A process stays only if another rank has failed, or ranks are let in; one that has failed by itself ends.
 * 2. All that a training holds is closed when it ends, by a failure too: the next one opens device, group, model and data anew, and reads
 *   the state that was kept, as a new process does. So it has the same bits.
 * 3. Memory of cards, and of transports between hosts, is left by a process's end alone: ranks on cards, and of several hosts, are new
 *   processes.
 *
 * @module
 */
import process from "node:process";
import { createInterface } from "node:readline";
import { encodeControlLine } from "./control_line.ts";
import { takeVariables } from "./env.ts";
import { terminal } from "./terminal.ts";

/** The places of this process. */
export class Places {
  /** True once the present training has found that this process may take another place. */
  stays = false;

  /** Waits for the next place, and takes its variables; false if there is none any more. */
  async next(): Promise<boolean> {
    const lines = createInterface({ input: process.stdin });
    const given = new Promise<string | undefined>((resolve) => {
      lines.once("line", resolve);
      lines.once("close", () => resolve(undefined));
    });
    const line = `${encodeControlLine({ waits: true })}\n`;
    for (const stream of ["stdout", "stderr"] as const) terminal(stream).write(line);
    const text = await given;
    // An input that is read would keep this process alive behind its training.
    process.stdin.pause();
    lines.close();
    if (text === undefined) return false;
    const variables: Readonly<Record<string, string>> = JSON.parse(text);
    takeVariables(variables);
    return true;
  }
}
