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
import { UnsupportedError } from "../src/errors.ts";
import { filePath } from "../src/runtime/files.ts";
import { packagedBytes } from "../src/runtime/packaged.ts";
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
  await packagedBytes(source, `library '${level}'`, LIBRARY_DIGESTS[level]);
  return filePath(source);
}
