/**
 * Features of the processor, as the system reports them: its flags also say which registers the kernel saves.
 *
 * @module
 */
import type { NativeLevel } from "../../../wasm/native.ts";
import { NativeError } from "../../errors.ts";
import type { Posix } from "../../ffi/posix.ts";

export interface Processor {
  /** As Linux names it, of x86 processors alone. */
  readonly vendor?: string | undefined;
  readonly model: string | undefined;
  /** Flags as Linux names them. */
  readonly features: ReadonlySet<string>;
}

/** Levels of an architecture with their flags, best first; a level has the flags of all later ones too. */
type Levels = readonly (readonly [level: NativeLevel, flags: readonly string[]])[];

/** Levels by architecture. */
const LEVELS: Readonly<Record<string, Levels>> = {
  x64: [
    ["v4-bf16", ["avx512_bf16"]],
    ["v4", ["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]],
    ["v3", ["avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"]],
  ],
  arm64: [["neon", ["asimd"]]],
};

/**
 * Vendors whose processors multiply widened elements faster than pairs of bfloat16 (AVX512_BF16): bench/NOTEBOOK.md has the rates. A
 * product has the same bits either way, but for subnormal numbers.
 */
const SLOW_PAIRS: ReadonlySet<string> = new Set(["GenuineIntel"]);

/** This processor; undefined if the system does not report it. */
export function readProcessor(posix: Posix): Processor | undefined {
  let bytes: Uint8Array | undefined;
  try {
    bytes = posix.readFile("/proc/cpuinfo");
  } catch (error) {
    if (!(error instanceof NativeError)) throw error;
  }
  if (bytes === undefined) return undefined;
  const text = new TextDecoder().decode(bytes);
  const field = (name: string): string | undefined => new RegExp(`^${name}\\s*:\\s*(.*)$`, "m").exec(text)?.[1];
  const [vendor, model] = [field("vendor_id"), field("model name")];
  return { vendor, model, features: new Set((field("flags") ?? field("Features") ?? "").split(" ")) };
}

export function lackingFor(level: NativeLevel, { features }: Processor): readonly string[] {
  return Object.values(LEVELS).flatMap((levels) => {
    const from = levels.findIndex(([name]) => name === level);
    return from < 0 ? [] : levels.slice(from).flatMap(([, flags]) => flags);
  }).filter((flag) => !features.has(flag));
}

/** The fastest level that a processor has. */
export function levelOf(processor: Processor): NativeLevel | undefined {
  const { vendor } = processor;
  const isSlow = (level: NativeLevel): boolean => level === "v4-bf16" && vendor !== undefined && SLOW_PAIRS.has(vendor);
  return Object.values(LEVELS).flat().find(([level]) => !isSlow(level) && lackingFor(level, processor).length === 0)
    ?.[0];
}

/** The lowest level of an architecture; undefined if there is none. */
export function leastLevel(arch: string): NativeLevel | undefined {
  return LEVELS[arch]?.at(-1)?.[0];
}
