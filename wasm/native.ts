/**
 * The door to the native libraries of the CPU kernels: where they lie, and that they are what the sources were built to. They
 * are opened by `src/device/native/`; nothing is run here.
 *
 * Only files can be opened: of a module that was imported from an address, there is no library.
 *
 * Permission on Deno: `--allow-read` of the library.
 *
 * @module
 */
import { FileError, UnsupportedError } from "../src/errors.ts";
import { sha256 } from "../src/runtime/checksum.ts";
import { filePath, pathKind, readBytes } from "../src/runtime/files.ts";
import { LIBRARY_DIGESTS } from "./digests.ts";

/** What a library is built for: x86-64-v3 has AVX2 and FMA, x86-64-v4 has AVX-512 too, and v4-bf16 products of bfloat16 besides; aarch64 has
 * NEON. */
export type NativeLevel = keyof typeof LIBRARY_DIGESTS;

/** One literal URL a file, so that bundlers see them. */
function sourceOf(level: NativeLevel): URL {
  switch (level) {
    case "v3":
      return new URL("./pkg/native-v3.so", import.meta.url);
    case "v4":
      return new URL("./pkg/native-v4.so", import.meta.url);
    case "v4-bf16":
      return new URL("./pkg/native-v4-bf16.so", import.meta.url);
    case "neon":
      return new URL("./pkg/native-neon.so", import.meta.url);
  }
}

/**
 * The file of a native library, after its bytes were compared with what the sources say.
 *
 * @param source where it lies; by default beside this file
 * @throws {UnsupportedError} if it is no file
 * @throws {FileError} if it cannot be read, or is another library
 */
export async function nativeLibraryPath(level: NativeLevel, source: URL = sourceOf(level)): Promise<string> {
  if (source.protocol !== "file:") {
    throw new UnsupportedError(
      `Cannot open a native library from ${source.href}, as it is no file: install the package ('npm install fullyshard')`,
    );
  }
  const path = filePath(source);
  const kind = pathKind(path);
  if (kind !== "file") {
    const found = kind === "none" ? "it is not there" : "it is not a regular file";
    throw new FileError(path, "open", `${found}; the package is incomplete, install it anew`);
  }
  const digest = sha256([await readBytes(path)]);
  if (digest === LIBRARY_DIGESTS[level]) return path;
  const expected = `its SHA-256 is ${digest}, that of this version's library ${LIBRARY_DIGESTS[level]}`;
  throw new FileError(path, "open", `${expected}; install the package anew`);
}
