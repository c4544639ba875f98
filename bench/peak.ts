/**
 * What the processor could do at most, by gcc's fused multiply-adds in registers.
 *
 * @module
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { runProgram } from "./process.ts";

/** GFLOP/s of one core while so many are busy, float32. */
export async function fmaPeak(busy: number): Promise<number> {
  const directory = await mkdtemp(join(tmpdir(), "fullyshard-peak-"));
  try {
    const path = join(directory, "peak");
    await runProgram("gcc", [
      "-O2",
      "-march=native",
      "-mprefer-vector-width=512",
      "bench/peers/fma_peak.c",
      "-o",
      path,
    ]);
    const each = await Promise.all(Array.from({ length: busy }, () => runProgram(path, [])));
    return Math.min(...each.map(({ output }) => Number(output)));
  } finally {
    await rm(directory, { recursive: true });
  }
}
