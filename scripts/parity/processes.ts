/**
 * Parity cases on ranks that are processes sharing memory, under one runtime or, rank by rank, under two.
 *
 * @module
 */
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { findRuntime } from "../../bin/runtimes.mjs";
import type { CpuMath } from "../../doors/device.ts";
import { assemble, type ParityCase, type WholeTrace } from "./traces.ts";
import type { Trace } from "./training.ts";

/** Name of a runtime. */
export type RuntimeName = "bun" | "deno";

/** Path of a runtime's program. */
export function programOf(runtime: RuntimeName): string {
  const program = findRuntime(runtime);
  if (program === undefined) throw new Error(`${runtime} is not installed: run 'npm install'`);
  return program;
}

/** Runs cases of one world size, one after another in one group; `runtimes` are those of the ranks, in turn. */
export async function runProcesses(
  cases: readonly ParityCase[],
  world: number,
  runtimes: readonly RuntimeName[],
  cpuMath: CpuMath,
): Promise<readonly WholeTrace[]> {
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-parity-`);
  const script = fileURLToPath(new URL("./process_rank.ts", import.meta.url));
  const run = crypto.randomUUID();
  const start = (rank: number): Promise<readonly Trace[]> => {
    const runtime = runtimes[rank % runtimes.length] ?? "bun";
    const lead = runtime === "deno" ? ["run", "--allow-all", "--no-check"] : ["run"];
    const file = `${folder}/${rank}.json`;
    const env = { ...process.env, RANK: String(rank), WORLD_SIZE: String(world), FULLYSHARD_RUN_ID: run };
    const args = [...lead, script, cpuMath, JSON.stringify(cases.map(({ training }) => training)), file];
    const child = spawn(programOf(runtime), args, { env, stdio: ["ignore", "inherit", "inherit"] });
    return new Promise((resolve, reject) => {
      child.once("error", reject);
      child.once("exit", (code) => {
        if (code === 0) resolve(JSON.parse(readFileSync(file, "utf8")));
        else reject(new Error(`rank ${rank} of ${world} under ${runtime} ended with ${code}`));
      });
    });
  };
  try {
    const traces = await Promise.all(Array.from({ length: world }, (_, rank) => start(rank)));
    return cases.map(({ name }, i) => assemble(name, traces.flatMap((ofRank) => ofRank.slice(i, i + 1)), world));
  } finally {
    rmSync(folder, { recursive: true });
  }
}
