/**
 * The door to native code: chooses the provider of the runtime, and opens libraries by their {@link LibrarySpec}.
 * This is the one place that asks which runtime it is; what is above gets a {@link FfiProvider}.
 *
 * Permissions on Deno: `--allow-ffi`, which is asked for at a terminal; `--allow-read` of the directories searched, for anything but a bare soname;
 * `--allow-env` for the overrides (`src/runtime/env.ts`).
 *
 * @module
 */
import { LibraryNotFoundError, UnsupportedError } from "../errors.ts";
import { type Environment, processEnvironment } from "../runtime/env.ts";
import { requestPermission } from "../runtime/permissions.ts";
import { LIBDL, RTLD_GLOBAL, RTLD_NOW } from "./bindings/libdl.ts";
import { cutOff } from "./elf.ts";
import { candidatePaths, companionPaths, explainFailure, type LibrarySpec } from "./library.ts";
import type { BindingTable, FfiProvider, Library, NativeAddress } from "./types.ts";

/** Options of {@link openLibrary}. */
export interface OpenLibraryOptions {
  /** A provider that is open already; its addresses and the library's are then of one kind. */
  readonly provider?: FfiProvider | undefined;
  /** Load this file, and no other. Stronger than the environment's override. */
  readonly path?: string;
  /** Directories to search before all others. */
  readonly directories?: readonly string[];
  /** Variables to read; the variables of the process unless given. */
  readonly environment?: Environment;
}

/** A library, and what was tried before it and did not load. */
export interface OpenedLibrary<T extends BindingTable> extends Library<T>, Pick<LibraryNotFoundError, "tried"> {}

/**
 * Opens the FFI provider of the runtime that this is.
 *
 * @throws {UnsupportedError} if the runtime is neither Bun nor Deno
 */
export async function openProvider(): Promise<FfiProvider> {
  if (Reflect.has(globalThis, "Bun")) {
    const { createProvider } = await import("./providers/bun.ts");
    return await createProvider();
  }
  if (Reflect.has(globalThis, "Deno")) {
    const { createProvider } = await import("./providers/deno.ts");
    return createProvider();
  }
  throw new UnsupportedError("Cannot call native code in this runtime: run under Bun or Deno");
}

/**
 * Opens a C library: the first of its candidate paths that loads.
 *
 * @param spec where to look, and its functions
 * @param options an open provider, an explicit path
 * @returns the library with its checked functions
 * @throws {LibraryNotFoundError} listing each path tried, why it failed, and how to install the library; naming the
 *   permission where it is lacking
 */
export async function openLibrary<T extends BindingTable>(
  spec: LibrarySpec<T>,
  options: OpenLibraryOptions = {},
): Promise<OpenedLibrary<T>> {
  // Asked for all of FFI: an answer for one library would admit neither its memory nor a soname without a directory.
  if (!requestPermission({ name: "ffi" })) {
    const remedy = "Deno may not call native code: add --allow-ffi, without a list of libraries";
    throw new LibraryNotFoundError(spec.name, spec.sonames.map((path) => ({ path, reason: "not permitted" })), remedy);
  }
  const provider = options.provider ?? await openProvider();
  const environment = options.environment ?? processEnvironment();
  const tried: { path: string; reason: string }[] = [];
  for (const path of candidatePaths(spec, environment, options.path, options.directories)) {
    const reason = cutOff(path);
    if (reason !== undefined) {
      tried.push({ path, reason });
      continue;
    }
    try {
      const { staysLoaded = spec.cuda === true || spec.driver === true ? "here" : undefined } = spec;
      if (staysLoaded === "globally") await keepLoaded(provider, [path], RTLD_NOW | RTLD_GLOBAL);
      const library = provider.load(spec.name, path, spec.bindings, spec);
      if (staysLoaded === "here") await keepLoaded(provider, [path, ...companionPaths(spec, path)]);
      return { ...library, tried };
    } catch (error) {
      tried.push({ path, reason: explainFailure(path, error) });
    }
  }
  throw new LibraryNotFoundError(spec.name, tried, spec.remedy);
}

/**
 * Loads files once more and for good. CUDA's and MPI's libraries run threads of their own; Deno unloads what it has loaded when
 * it ends, and a thread whose code is gone crashes the process.
 */
async function keepLoaded(provider: FfiProvider, paths: readonly string[], mode: number = RTLD_NOW): Promise<void> {
  const { symbols } = await openLibrary(LIBDL, { provider });
  for (const path of paths) symbols.dlopen(path, mode);
}

/**
 * The addresses of data that a library exports, by name; null for one that it lacks.
 *
 * @param library an open library
 */
export async function dataSymbols(
  { path, provider }: Pick<Library<BindingTable>, "path" | "provider">,
  names: readonly string[],
): Promise<readonly NativeAddress[]> {
  const { symbols } = await openLibrary(LIBDL, { provider });
  const handle = symbols.dlopen(path, RTLD_NOW);
  return names.map((name) => symbols.dlsym(handle, name));
}
