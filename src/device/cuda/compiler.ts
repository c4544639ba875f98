/**
 * Compilation of kernels for one kind of card, by NVRTC, which takes a tenth of a second for each. Compiled kernels are kept in a
 * folder, by the digest of text, card and compiler, so that each is compiled once. Damaged files are compiled again.
 *
 * @module
 */
import { FileError, InternalError } from "../../errors.ts";
import type { NativeAddress } from "../../ffi/types.ts";
import { equalCodes, sha256 } from "../../runtime/checksum.ts";
import type { Environment } from "../../runtime/env.ts";
import { makeDirectory, openReadable, pathKind, replaceFile } from "../../runtime/files.ts";
import type { Nvrtc } from "./libraries.ts";

/**
 * Options besides the card's. A multiplication and an addition are fused only where a text says so: all versions of the compiler
 * give the same bits.
 */
const OPTIONS = ["--std=c++17", "--fmad=false", "--ptxas-options=-v"];

/** Result of a compilation. */
export interface Compiled {
  readonly code: Uint8Array<ArrayBuffer>;
  /** Messages of the compiler, with registers, spills and shared memory of each entry point. */
  readonly log: string;
}

/**
 * Compiles a text.
 *
 * @param architecture e.g. `sm_90`
 * @throws {InternalError} with the compiler's messages if it refuses the text
 */
export function compileKernel(
  { symbols, provider }: Nvrtc,
  name: string,
  text: string,
  architecture: string,
): Compiled {
  const options = [`--gpu-architecture=${architecture}`, ...OPTIONS];
  const texts = options.map((option) => new TextEncoder().encode(`${option}\0`));
  const layout = { name: "const char *", byteLength: 8, fields: { at: { offset: 0, type: "address" } } } as const;
  const list = provider.struct(layout, texts.length);
  const places: readonly NativeAddress[] = texts.map((option) => provider.addressOf(option));
  places.forEach((place, i) => list.set("at", place, i));
  const [program, size] = [provider.out("address"), provider.out("usize")];
  symbols.nvrtcCreateProgram(program, text, `${name}.cu`, 0, null, null);
  try {
    const status = symbols.nvrtcCompileProgram(program.value, texts.length, list.bytes);
    symbols.nvrtcGetProgramLogSize(program.value, size);
    const bytes = new Uint8Array(Math.max(1, size.value));
    symbols.nvrtcGetProgramLog(program.value, bytes);
    const log = new TextDecoder().decode(bytes.subarray(0, -1));
    if (status !== 0) throw new InternalError(`Kernel '${name}' does not compile for ${architecture}:\n${log}`);
    symbols.nvrtcGetCUBINSize(program.value, size);
    const code = new Uint8Array(size.value);
    symbols.nvrtcGetCUBIN(program.value, code);
    return { code, log };
  } finally {
    symbols.nvrtcDestroyProgram(program);
  }
}

/** NVRTC's version, e.g. `13.0`. */
export function nvrtcVersion({ symbols, provider }: Nvrtc): string {
  const [major, minor] = [provider.out("i32"), provider.out("i32")];
  symbols.nvrtcVersion(major, minor);
  return `${major.value}.${minor.value}`;
}

/** The key of a compiled kernel: the digest of card, compiler, options and text. */
export function kernelDigest(architecture: string, version: string, text: string): string {
  return sha256([new TextEncoder().encode(`${architecture}\n${version}\n${OPTIONS.join(" ")}\n${text}`)]).slice(0, 32);
}

/** The folder for compiled kernels: a named one, or the user's cache folder; undefined if neither is known. */
export function kernelCacheFolder(environment: Environment): string | undefined {
  const named = environment.text("FULLYSHARD_KERNEL_CACHE");
  if (named !== undefined) return named;
  const home = environment.text("HOME");
  const caches = environment.text("XDG_CACHE_HOME") ?? (home === undefined ? undefined : `${home}/.cache`);
  return caches === undefined ? undefined : `${caches}/fullyshard/kernels`;
}

/** Compiles kernels for one kind of card, each once. */
export class KernelCompiler {
  readonly #nvrtc: Nvrtc;
  readonly #architecture: string;
  readonly #folder: string | undefined;
  readonly #version: string;

  /** @param folder folder of compiled kernels; undefined to keep none */
  constructor(nvrtc: Nvrtc, architecture: string, folder: string | undefined) {
    this.#nvrtc = nvrtc;
    this.#architecture = architecture;
    this.#folder = folder;
    this.#version = nvrtcVersion(nvrtc);
  }

  /** The compiler and the architecture, in words. */
  get detail(): string {
    return `NVRTC ${this.#version} for ${this.#architecture}`;
  }

  code(name: string, text: string): Uint8Array<ArrayBuffer> {
    const digest = kernelDigest(this.#architecture, this.#version, text);
    const file = this.#folder === undefined ? undefined : `${this.#folder}/${name}-${digest}.cubin`;
    const kept = file === undefined ? undefined : keptCode(file);
    if (kept !== undefined) return kept;
    const { code } = compileKernel(this.#nvrtc, name, text, this.#architecture);
    if (file !== undefined) this.#keep(file, code);
    return code;
  }

  /** Keeps code for later trainings. If the folder cannot be written, they compile it again. */
  #keep(file: string, code: Uint8Array): void {
    try {
      makeDirectory(file.slice(0, file.lastIndexOf("/")));
      replaceFile(file, [code, sealOf(code)]);
    } catch (error) {
      if (!(error instanceof FileError)) throw error;
    }
  }
}

/** Bytes after the code in a file: the digest of the code. */
const SEAL_BYTES = 64;

function sealOf(code: Uint8Array): Uint8Array {
  return new TextEncoder().encode(sha256([code]));
}

/** The code in a file; undefined if it cannot be read, or is damaged, so that it is compiled again. */
function keptCode(file: string): Uint8Array<ArrayBuffer> | undefined {
  try {
    if (pathKind(file) !== "file") return undefined;
    using reader = openReadable(file);
    const bytes = new Uint8Array(reader.byteLength);
    reader.read(0, bytes);
    const [code, seal] = [bytes.subarray(0, -SEAL_BYTES), bytes.subarray(-SEAL_BYTES)];
    return equalCodes(seal, sealOf(code)) ? code : undefined;
  } catch (error) {
    if (!(error instanceof FileError)) throw error;
    return undefined;
  }
}
