/**
 * Lists the places in which a C library may lie, and explains why a file there did not load. Opening is left to `src/ffi/mod.ts`.
 *
 * A file that is named (by the option, then by `FULLYSHARD_<NAME>_LIBRARY`) is the only place. Otherwise the order is, after
 * directories that the caller knows:
 * 1. Python environments;
 * 2. CUDA_HOME;
 * 3. LD_LIBRARY_PATH;
 * 4. packages of the system's Python;
 * 5. the system's directories.
 *
 * All are absolute paths, as Bun takes a bare name that the dynamic linker does not know from the working directory.
 * Only the C library, which every process has loaded already, is opened by its name.
 *
 * @module
 */
import { FileError, UnsupportedError } from "../errors.ts";
import { entryKind } from "../runtime/entries.ts";
import type { Environment } from "../runtime/env.ts";
import { listDirectory, readTextSync } from "../runtime/files.ts";
import { platform } from "../runtime/processes.ts";
import type { BindingTable, LoadOptions } from "./types.ts";

/** A library's possible places, and its purpose. */
export interface LibrarySource {
  /** Its name in messages, e.g. `NCCL`. */
  readonly name: string;
  /** Its file names, best first. */
  readonly sonames: readonly string[];
  /** The variable that names a file to load instead of searching; none for a part of the system. */
  readonly override?: Parameters<Environment["text"]>[0];
  /** Directories under a Python environment's site-packages in which wheels put it. */
  readonly packageDirectories: readonly string[];
  /** Names of files beside it that it opens by bare name, which the linker knows only of loaded ones. */
  readonly companions?: RegExp;
  /**
   * Loaded once more and for good, for libraries that run threads of their own; `globally` if files that it loads itself look for its
   * symbols among those of the process.
   */
  readonly staysLoaded?: "here" | "globally";
  /** It belongs to the CUDA toolkit. */
  readonly cuda?: boolean;
  /** It belongs to NVIDIA's driver, which containers and WSL bring from outside. */
  readonly driver?: boolean;
  /** Only bare sonames: the C library, which every process has loaded already. */
  readonly systemOnly?: boolean;
  /** The benefit of the library, e.g. `faster matrix products on the CPU`. */
  readonly gives: string;
  /** The way to install it, or the reason not to, as a sentence. */
  readonly remedy: string;
}

/** A library with its functions. */
export interface LibrarySpec<T extends BindingTable> extends LibrarySource, LoadOptions {
  readonly bindings: T;
  readonly remedy: string;
}

/**
 * The paths at which a library is looked for, in order.
 *
 * @param source the library
 * @param environment variables that steer the search
 * @param explicit a file to load, and no other
 * @param first directories that come before all others
 */
export function candidatePaths(
  source: LibrarySource,
  environment: Environment,
  explicit?: string,
  first: readonly string[] = [],
): string[] {
  const named = explicit ?? (source.override === undefined ? undefined : environment.text(source.override));
  if (named !== undefined) return [named];
  if (source.systemOnly === true) return [...source.sonames];
  const directories = [...first];
  for (const prefix of [environment.text("VIRTUAL_ENV"), environment.text("CONDA_PREFIX")]) {
    if (prefix !== undefined) directories.push(`${prefix}/lib`, ...packagesOf(prefix, "site-packages", source));
  }
  const cudaHome = environment.text("CUDA_HOME");
  if (source.cuda === true && cudaHome !== undefined) directories.push(`${cudaHome}/lib64`);
  directories.push(...(environment.text("LD_LIBRARY_PATH") ?? "").split(":").filter((part) => part.startsWith("/")));
  for (const prefix of ["/usr/local", "/usr"]) {
    for (const name of ["site-packages", "dist-packages"]) directories.push(...packagesOf(prefix, name, source));
  }
  directories.push(...systemDirectories(), ...configuredDirectories());
  if (source.cuda === true) directories.push("/usr/local/cuda/lib64");
  if (source.driver === true) directories.push("/usr/local/nvidia/lib64", "/usr/lib/wsl/lib");
  return [...new Set(directories)].flatMap((directory) => source.sonames.map((soname) => `${directory}/${soname}`));
}

/** The files beside a library that it will look for by bare name: see {@link LibrarySource.companions}. */
export function companionPaths({ companions }: LibrarySource, path: string): string[] {
  const directory = path.slice(0, path.lastIndexOf("/"));
  if (companions === undefined || !path.startsWith("/")) return [];
  return entriesOf(directory).filter((name) => companions.test(name)).map((name) => `${directory}/${name}`);
}

/** The system's library directories on this architecture. */
function systemDirectories(): string[] {
  const { arch, os } = platform();
  if (os !== "linux") return ["/usr/local/lib", "/opt/homebrew/lib", "/usr/lib"];
  const triplet = arch === "arm64" ? "aarch64-linux-gnu" : "x86_64-linux-gnu";
  return ["/usr/local/lib", `/usr/lib/${triplet}`, `/lib/${triplet}`, "/usr/lib64", "/lib64", "/usr/lib", "/lib"];
}

/** Directories of the dynamic linker's configuration, beyond {@link systemDirectories}. */
function configuredDirectories(): string[] {
  const files = entriesOf("/etc/ld.so.conf.d").filter((name) => name.endsWith(".conf"));
  const lines = ["/etc/ld.so.conf", ...files.map((name) => `/etc/ld.so.conf.d/${name}`)].flatMap(linesOf);
  return lines.filter((line) => line.startsWith("/"));
}

/** Lines of a text file; none if it cannot be read, as then nothing can be learnt from it. */
function linesOf(path: string): string[] {
  try {
    return readTextSync(path).split("\n").map((line) => line.trim());
  } catch (error) {
    if (error instanceof FileError) return [];
    throw error;
  }
}

/** The places in which wheels put a library, for each Python under a prefix. */
function packagesOf(prefix: string, packages: string, { packageDirectories }: LibrarySource): string[] {
  const pythons = entriesOf(`${prefix}/lib`).filter((name) => /^python3(\.\d+)?$/.test(name));
  return pythons.flatMap((python) => packageDirectories.map((place) => `${prefix}/lib/${python}/${packages}/${place}`));
}

/** Names in a directory; none if it cannot be listed, as then nothing can be found in it. */
function entriesOf(directory: string): string[] {
  try {
    return listDirectory(directory);
  } catch (error) {
    if (error instanceof FileError) return [];
    throw error;
  }
}

const NO_FILE = "no such file";
const NOT_KNOWN = "not known to the dynamic linker";

/**
 * True if a reason that {@link explainFailure} gave says that there is nothing, rather than something that does not
 * work.
 */
export function isAbsence(reason: string): boolean {
  return reason === NO_FILE || reason === NOT_KNOWN;
}

/**
 * The reason that a candidate did not load: the dynamic linker's own words, which name a missing dependency. A file that is not
 * there has a reason of its own.
 *
 * @param path the candidate
 * @param error what the runtime threw
 */
export function explainFailure(path: string, error: unknown): string {
  if (error instanceof UnsupportedError) return error.message; // it loaded, and lacks functions
  const text = error instanceof Error ? error.message : String(error);
  const words = text.replace(/^(?:Could not open library: |Failed to open library ".*?": )+/, "").trim();
  if (words.endsWith(`${path}: cannot open shared object file: No such file or directory`) || isAbsent(path)) {
    return path.includes("/") ? NO_FILE : NOT_KNOWN;
  }
  return words.replace(`${path}: `, "");
}

/** True if nothing has that path, not even a dangling link: the words of the system's linker do not say. */
function isAbsent(path: string): boolean {
  try {
    return path.startsWith("/") && entryKind(path) === undefined;
  } catch (error) {
    if (error instanceof FileError) return false;
    throw error;
  }
}
