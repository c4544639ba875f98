/**
 * Compares directories in this process, under this runtime. Started by `main.ts`.
 *
 * Usage: scripts/reference/run.ts <cpu math> <text|json> <directory> ...
 *
 * @module
 */
import { readFileSync } from "node:fs";
import process from "node:process";
import { type CpuMath, openDevice } from "../../doors/device.ts";
import { CPU_MATH } from "../../src/device/cpu.ts";
import { compareDirectory } from "./compare.ts";
import type { Quantity } from "./verdict.ts";

/** The outcome for one directory. */
interface Verdict {
  readonly directory: string;
  /** Its `model_type`. */
  readonly arch: string;
  readonly pass: boolean;
  readonly quantities: readonly Quantity[];
  /** The reason why nothing could be compared. */
  readonly error?: string;
}

function isCpuMath(name: string): name is CpuMath {
  return CPU_MATH.some((math) => math === name);
}

function archOf(directory: string): string {
  try {
    return String(JSON.parse(readFileSync(`${directory}/config.json`, "utf8")).model_type);
  } catch {
    // That there is no config is what the comparison is about to say.
    return "unknown";
  }
}

/** The verdict in lines for people. */
function describe({ directory, arch, pass, quantities, error }: Verdict): string {
  const width = Math.max(0, ...quantities.map(({ name }) => name.length));
  const lines = quantities.map(({ name, worst, allowed, pass }) => {
    return `  ${pass ? "ok  " : "FAIL"} ${name.padEnd(width)}  ${worst.toExponential(2)} of ${
      allowed.toExponential(2)
    }`;
  });
  const head = `${pass ? "ok  " : "FAIL"} ${directory} (${arch})${error === undefined ? "" : `: ${error}`}`;
  return [head, ...lines].join("\n");
}

async function main([math = "", form = "", ...directories]: readonly string[]): Promise<number> {
  if (!isCpuMath(math)) throw new Error(`expected ${CPU_MATH.join(", ")} math, got '${math}'`);
  const device = await openDevice("cpu", { cpuMath: math });
  let failed = 0;
  for (const directory of directories) {
    const arch = archOf(directory);
    const verdict = await compareDirectory(device, directory).then(
      (quantities): Verdict => {
        return { directory, arch, pass: quantities.every(({ pass }) => pass), quantities };
      },
      (error): Verdict => ({ directory, arch, pass: false, quantities: [], error: String(error) }),
    );
    if (!verdict.pass) failed++;
    process.stdout.write(`${form === "json" ? JSON.stringify(verdict) : describe(verdict)}\n`);
  }
  if (form === "text") process.stdout.write(`${directories.length - failed} passed, ${failed} failed\n`);
  return failed === 0 ? 0 : 1;
}

process.exitCode = await main(process.argv.slice(2));
