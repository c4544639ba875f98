/**
 * Programs as a user starts them: the command line of the library, and Python.
 *
 * @module
 */
import { spawn } from "node:child_process";
import process from "node:process";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../..", import.meta.url));

/** How a program ended. */
export interface Ended {
  /** Exit code; null after a signal. */
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** Variables of a launch, which would make each program a rank of it. */
const ofLaunches = /^(?:(?:LOCAL_)?(?:RANK|WORLD_SIZE)|GROUP_RANK|MASTER_(?:ADDR|PORT)|FULLYSHARD_.*)$/;

/** Runs a program to its end, whatever that is. @param cwd the folder in which it runs. @default the checkout */
export function runProgram(
  program: string,
  args: readonly string[],
  variables: Readonly<Record<string, string>> = {},
  cwd: string = root,
): Promise<Ended> {
  const inherited = Object.entries(process.env).filter(([name]) => !ofLaunches.test(name));
  const child = spawn(program, args, {
    cwd,
    env: { ...Object.fromEntries(inherited), NO_COLOR: "1", ...variables },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const texts = { stdout: "", stderr: "" };
  for (const stream of ["stdout", "stderr"] as const) {
    child[stream].setEncoding("utf8");
    child[stream].on("data", (text: string) => texts[stream] += text);
  }
  return new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("close", (code) => resolve({ code, ...texts }));
  });
}

/** Runs `fullyshard` with these arguments, to its end. */
export function fullyshard(...args: readonly string[]): Promise<Ended> {
  return runProgram("node", [`${root}bin/fullyshard.mjs`, ...args]);
}

/**
 * Runs `fullyshard`, and expects that it succeeds.
 *
 * @throws {Error} with what it printed, if it does not
 */
export async function succeeds(...args: readonly string[]): Promise<Ended> {
  const ended = await fullyshard(...args);
  if (ended.code === 0) return ended;
  throw new Error(`Expected 'fullyshard ${args.join(" ")}' to succeed, got ${ended.code}: ${ended.stderr.trim()}`);
}
