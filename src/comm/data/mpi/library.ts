/**
 * Finds the library of MPI that fits the launcher, and how its handles are made. A library of another launcher would make a world of
 * one rank in each process.
 *
 * @module
 */
import { at } from "../../../at.ts";
import { LibraryNotFoundError } from "../../../errors.ts";
import {
  MPI,
  type MPI_BINDINGS,
  MPI_HANDLES,
  MPI_MAX_LIBRARY_VERSION_STRING,
  MPI_THREAD_FUNNELED,
  MPI_THREAD_SERIALIZED,
  type MpiAbi,
  type MpiHandleName,
} from "../../../ffi/bindings/mpi.ts";
import { dataSymbols, openLibrary } from "../../../ffi/mod.ts";
import type { FfiProvider, Library, NativeAddress } from "../../../ffi/types.ts";
import { type Environment, processEnvironment, processSource } from "../../../runtime/env.ts";
import { type MpiLibrary, mpiLibraryOf } from "../../../runtime/launchers.ts";
import { ancestors } from "../../../runtime/ancestors.ts";
import { runtime, scriptCommand } from "../../../runtime/processes.ts";

/** An open library of MPI. */
export interface OpenMpiLibrary extends Pick<Library<typeof MPI_BINDINGS>, "symbols" | "provider" | "path"> {
  readonly abi: MpiAbi;
  /** Predefined handles. */
  readonly handles: Readonly<Record<MpiHandleName, NativeAddress>>;
  /** Numbers of the thread levels at which one thread calls MPI, and any thread, one at a time. */
  readonly threads: { readonly funneled: number; readonly serialized: number };
  /** First line of what the library says of itself, e.g. `Open MPI v5.0.11, package: …`. */
  readonly version: string;
}

/** File names: of Open MPI 4 and 5, and of any library with the ABI of MPI 5.0. */
const OF_OPEN_MPI = "libmpi.so.40";
const OF_ANY = /^libmpi_abi\./;

/** Programs that start ranks, whose `lib` folder has the library. */
const LAUNCHER_PROGRAM = /^(mpirun|mpiexec|mpiexec\..*|orterun|orted|prterun|prted|hydra_.*|pmi_proxy|.*_pmi_proxy)$/;

/** Names of the files to look for, under a launcher with this library. */
export function libraryNames(library: MpiLibrary | undefined): readonly string[] {
  if (library === undefined) return MPI.sonames;
  return MPI.sonames.filter((name) => OF_ANY.test(name) || (name === OF_OPEN_MPI) === (library === "openmpi"));
}

/**
 * Folders in which the launcher says that its library lies: by variables, and by where the programs lie that started this process.
 *
 * @param programs paths of the programs that started this process, the nearest first
 */
export function launcherDirectories(environment: Environment, programs: readonly string[]): readonly string[] {
  const [folder, prefix, intel] = [
    environment.text("OMPI_LIBDIR_LOC"),
    environment.text("OPAL_PREFIX"),
    environment.text("I_MPI_ROOT"),
  ];
  const named = [
    ...folder === undefined ? [] : [folder],
    ...prefix === undefined ? [] : [`${prefix}/lib`],
    ...intel === undefined ? [] : [`${intel}/lib`, `${intel}/lib/release`],
  ];
  const beside = programs.flatMap((path) => {
    const [, root, name = ""] = /^(.*)\/(?:s?bin|libexec)\/([^/]+)$/.exec(path) ?? [];
    // Debian's packages have their libraries in the system's folders, which come later anyway.
    return root === undefined || root === "/usr" || !LAUNCHER_PROGRAM.test(name) ? [] : [`${root}/lib`];
  });
  return [...new Set([...named, ...beside])];
}

/**
 * Opens the launcher's library of MPI, or the file that FULLYSHARD_MPI_LIBRARY names.
 *
 * @param kind of the library, by default the launcher's
 * @throws {LibraryNotFoundError} if there is none, naming the launcher's variables
 */
export async function openMpiLibrary(
  provider?: FfiProvider,
  kind: MpiLibrary | undefined = mpiLibraryOf(processSource),
): Promise<OpenMpiLibrary> {
  const environment = processEnvironment();
  const sonames = libraryNames(kind);
  const directories = launcherDirectories(environment, ancestors().map(({ program }) => program));
  const library = await openLibrary({ ...MPI, sonames }, { provider, environment, directories });
  return { ...library, ...await readAbi(library), version: versionOf(library) };
}

type Loaded = Pick<Library<typeof MPI_BINDINGS>, "symbols" | "provider" | "path">;

/** The ABI of a library, by its own word: `MPI_Abi_get_version`, then Open MPI's symbols. */
async function readAbi(library: Loaded): Promise<Pick<OpenMpiLibrary, "abi" | "handles" | "threads">> {
  const { provider } = library;
  const entries = Object.entries(MPI_HANDLES);
  const found = await dataSymbols(library, entries.map(([, { openmpi }]) => openmpi));
  const isOpenMpi = found.every((address) => address !== provider.nullAddress);
  const abi: MpiAbi = followsMpi5(library) ? "mpi5" : isOpenMpi ? "openmpi" : "mpich";
  const handleOf = (name: MpiHandleName): NativeAddress =>
    abi === "openmpi"
      ? at(found, entries.findIndex(([entry]) => entry === name), "handle")
      : provider.offset(provider.nullAddress, MPI_HANDLES[name][abi]);
  return {
    abi,
    handles: {
      MPI_COMM_WORLD: handleOf("MPI_COMM_WORLD"),
      MPI_BYTE: handleOf("MPI_BYTE"),
      MPI_ERRORS_RETURN: handleOf("MPI_ERRORS_RETURN"),
    },
    threads: { funneled: MPI_THREAD_FUNNELED[abi], serialized: MPI_THREAD_SERIALIZED[abi] },
  };
}

/** True if handles are those of the ABI of MPI 5.0. MPICH 5 has the function in both of its libraries, with -1 in one of them. */
function followsMpi5({ symbols }: Loaded): boolean {
  const [major, minor] = [Int32Array.of(-1), Int32Array.of(-1)];
  symbols.MPI_Abi_get_version?.(major, minor);
  return at(major, 0, "version") >= 1;
}

function versionOf({ symbols }: Loaded): string {
  const [text, length] = [new Uint8Array(MPI_MAX_LIBRARY_VERSION_STRING), new Int32Array(1)];
  symbols.MPI_Get_library_version(text, length);
  const [first = ""] = new TextDecoder().decode(text.subarray(0, at(length, 0, "length"))).split("\n");
  return first.replaceAll("\0", "").replace(/\s+/g, " ").trim().slice(0, 80);
}

/** The error of a rank that finds no library of MPI. @param isLaunched true if a launcher of MPI started it */
export function withoutLibrary(
  error: LibraryNotFoundError,
  worldSize: number,
  isLaunched: boolean,
): LibraryNotFoundError {
  const byLauncher = `start them by 'mpirun -n ${worldSize} ${runtime().name} ${scriptCommand()}'`;
  const ways = isLaunched
    ? `${byLauncher}. ${MPI.remedy}`
    : `install MPICH or Intel MPI on each host, for example by 'pip install mpich' in an active virtual environment, or ${byLauncher}; ` +
      "FULLYSHARD_MPI_LIBRARY names a file elsewhere";
  const purpose =
    `It joins ranks of several hosts, and those that a launcher such as mpirun starts, on the CPU: ${ways}`;
  return new LibraryNotFoundError(error.library, error.tried, purpose);
}
