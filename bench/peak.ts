/**
 * The peak rates of the machine, by programs that gcc builds for it: fused multiply-adds in registers, and arrays that are read
 * and written beyond the caches.
 *
 * @module
 */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { runProgram } from "./process.ts";

/** GFLOP/s of one core while `busy` cores compute, float32. */
export function fmaPeak(busy: number): Promise<number> {
  return peakOf("fma_peak.c", busy);
}

/** GB/s of one core while `busy` cores read and write. */
export function memoryPeak(busy: number): Promise<number> {
  return peakOf("memory_peak.c", busy);
}

/** The rates that were measured in this run, by program and busy cores. */
const measured = new Map<string, Promise<number>>();

function peakOf(source: string, busy: number): Promise<number> {
  const key = `${source} ${busy}`;
  const peak = measured.get(key) ?? measurePeak(source, busy);
  measured.set(key, peak);
  return peak;
}

async function measurePeak(source: string, busy: number): Promise<number> {
  const directory = await mkdtemp(join(tmpdir(), "fullyshard-peak-"));
  try {
    const path = join(directory, "peak");
    const flags = ["-O3", "-march=native", "-mprefer-vector-width=512"];
    await runProgram("gcc", [...flags, `bench/peers/${source}`, "-o", path]);
    const each = await Promise.all(Array.from({ length: busy }, () => runProgram(path, [])));
    return Math.min(...each.map(({ output }) => Number(output)));
  } finally {
    await rm(directory, { recursive: true });
  }
}
