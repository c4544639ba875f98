/**
 * Features of the processor, as the system reports them: its flags also say which registers the kernel saves.
 *
 * @module
 */
import type { NativeLevel } from "../../../wasm/native.ts";
import { NativeError } from "../../errors.ts";
import type { Posix } from "../../ffi/posix.ts";

export interface Processor {
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
  return { model: field("model name"), features: new Set((field("flags") ?? field("Features") ?? "").split(" ")) };
}

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

/** The lowest level of an architecture; undefined if there is none. */
export function leastLevel(arch: string): NativeLevel | undefined {
  return LEVELS[arch]?.at(-1)?.[0];
}
