/**
 * Processes of a benchmark, run to the end.
 *
 * @module
 */
import { type ChildProcess, spawn } from "node:child_process";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { findRuntime } from "../bin/runtimes.mjs";
import type { StopSignal } from "../src/runtime/signals.ts";

/** The project's root. */
export const ROOT: string = fileURLToPath(new URL("..", import.meta.url));

/** The path of a runtime. */
export function runtimePath(name: "bun" | "deno"): string {
  const path = findRuntime(name);
  if (path === undefined) throw new Error(`${name} is not installed: run 'npm install'`);
  return path;
}

/** Programs that run now. */
const running = new Set<ChildProcess>();
let isEnding = false;

/**
 * Ends what runs, and lets nothing start any more. What a terminal sends comes to all programs of its group, and launchers end
 * at once by a second signal of a kind, so another one is sent.
 */
export function endPrograms(signal: StopSignal): void {
  isEnding = true;
  for (const child of running) child.kill(signal === "SIGTERM" ? "SIGINT" : "SIGTERM");
}

/**
 * Runs a program; resolves with its output and the seconds that it took.
 *
 * @throws if it fails, with what it printed; or after {@link endPrograms}
 */
export function runProgram(
  program: string,
  args: readonly string[],
  variables: Readonly<Record<string, string>> = {},
): Promise<{ readonly output: string; readonly seconds: number }> {
  return new Promise((resolve, reject) => {
    if (isEnding) return reject(new Error(`${program} was not started, as the benchmark was ended`));
    const started = performance.now();
    const child = spawn(program, args, {
      cwd: ROOT,
      env: { ...process.env, ...variables },
      stdio: ["ignore", "pipe", "pipe"],
    });
    let out = "";
    let errors = "";
    child.stdout.on("data", (chunk) => out += chunk);
    child.stderr.on("data", (chunk) => errors += chunk);
    running.add(child);
    child.on("error", (error) => {
      running.delete(child);
      reject(error);
    });
    child.on("close", (code, signal) => {
      running.delete(child);
      const seconds = (performance.now() - started) / 1000;
      if (code === 0) resolve({ output: out, seconds });
      else reject(new Error(`${program} ${args.join(" ")} ended with ${code ?? signal}:\n${out}${errors}`));
    });
  });
}

/** Variables by which a rank meets those of no other run, while several benchmarks go on. */
export function runOfItsOwn(): Readonly<Record<string, string>> {
  return { FULLYSHARD_RUN_ID: crypto.randomUUID() };
}

/** The command that runs a script of `bench/ranks` in a process of its own. */
export function rank(name: "bun" | "deno", ...script: string[]): readonly [string, ...string[]] {
  return [runtimePath(name), "run", ...name === "deno" ? ["--allow-all"] : [], ...script];
}

/** The command that runs it on several. */
export function launch(name: "bun" | "deno", ranks: number, ...script: string[]): readonly [string, ...string[]] {
  return rank(name, `${ROOT}src/cli/main.ts`, "run", "--nproc-per-node", String(ranks), ...script);
}
