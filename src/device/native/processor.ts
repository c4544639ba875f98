/**
 * What the processor can do, as the system says: its flags name what the kernel saves registers for too.
 *
 * @module
 */
import type { NativeLevel } from "../../../wasm/native.ts";
import { NativeError } from "../../errors.ts";
import type { Posix } from "../../ffi/posix.ts";

/** A processor. */
export interface Processor {
  readonly model: string | undefined;
  /** Flags as Linux names them. */
  readonly features: ReadonlySet<string>;
}

/** Levels of one architecture with their flags, best first; a level has those of the ones behind it too. */
type Levels = readonly (readonly [level: NativeLevel, flags: readonly string[]])[];

/** By the names of architectures. */
const LEVELS: Readonly<Record<string, Levels>> = {
  x64: [
    ["v4-bf16", ["avx512_bf16"]],
    ["v4", ["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"]],
    ["v3", ["avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"]],
  ],
  arm64: [["neon", ["asimd"]]],
};

/** This processor; undefined where the system does not tell. */
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
  return { model: field("model name"), features: new Set((field("flags") ?? field("Features") ?? "").split(" ")) };
}

/** Flags that a processor lacks for a level. */
export function lackingFor(level: NativeLevel, { features }: Processor): readonly string[] {
  return Object.values(LEVELS).flatMap((levels) => {
    const from = levels.findIndex(([name]) => name === level);
    return from < 0 ? [] : levels.slice(from).flatMap(([, flags]) => flags);
  }).filter((flag) => !features.has(flag));
}

/** The best level that a processor has. */
export function levelOf(processor: Processor): NativeLevel | undefined {
  return Object.values(LEVELS).flat().find(([level]) => lackingFor(level, processor).length === 0)?.[0];
}

/** The level of an architecture that asks for least; undefined where there is none. */
export function leastLevel(arch: string): NativeLevel | undefined {
  return LEVELS[arch]?.at(-1)?.[0];
}
