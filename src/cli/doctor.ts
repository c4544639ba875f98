/**
 * `fullyshard doctor`: what this machine has and lacks. It changes nothing. Libraries are opened; of MPI, which
 * starts threads, it finds the file. What is found but does not work is reported differently from a library that is missing.
 *
 * Permissions on Deno: `--allow-ffi --allow-read --allow-env`. What it may not look at, it says it does not know.
 *
 * @module
 */
import { loadKernelModule } from "../../wasm/mod.ts";
import { wrapWords } from "../config/flags.ts";
import { nvrtcVersion } from "../device/cuda/compiler.ts";
import { cudnnVersion } from "../device/cuda/cudnn/version.ts";
import { cudaVersion } from "../device/cuda/libraries.ts";
import { LEVEL_NAMES, openNativeLibrary } from "../device/native/library.ts";
import { readProcessor } from "../device/native/processor.ts";
import { FileError, isOneOf, LibraryNotFoundError, NativeError, UnsupportedError, USAGE_ERRORS } from "../errors.ts";
import { CUBLASLT } from "../ffi/bindings/cublaslt.ts";
import { CUDA } from "../ffi/bindings/cuda.ts";
import { CUDART } from "../ffi/bindings/cudart.ts";
import { CUDNN } from "../ffi/bindings/cudnn.ts";
import { LIBC } from "../ffi/bindings/libc.ts";
import { NCCL } from "../ffi/bindings/nccl.ts";
import { NVRTC } from "../ffi/bindings/nvrtc.ts";
import { MPI } from "../ffi/bindings/mpi.ts";
import { candidatePaths, isAbsence, type LibrarySource, type LibrarySpec } from "../ffi/library.ts";
import { openLibrary } from "../ffi/mod.ts";
import { Posix } from "../ffi/posix.ts";
import type { BindingTable, Library } from "../ffi/types.ts";
import { type Environment, processEnvironment } from "../runtime/env.ts";
import { pathKind, type Space } from "../runtime/files.ts";
import {
  coreCount,
  type PlatformVerdict,
  platformVerdict,
  type Runtime,
  runtime,
  threadsOfRank,
} from "../runtime/processes.ts";
import { type CudaReport, describeCuda, examineCuda, explainNccl, ncclBuild, ncclVersion } from "./doctor_cuda.ts";

/** The facts about one library. */
export interface LibraryReport extends Required<Pick<LibrarySource, "name" | "gives" | "remedy">> {
  /** `loaded`: opened. `present`: a file, not opened. `broken`: found, does not work. `missing`: not found. */
  readonly state: "loaded" | "present" | "broken" | "missing";
  readonly path: string | null;
  readonly version: string | null;
  /** Files that were found and do not work, with the reason. */
  readonly broken: LibraryNotFoundError["tried"];
  /** The number of paths that were tried. */
  readonly tried: number;
}

/** The findings of `doctor`; sizes in bytes, null where a fact is not known. */
export interface DoctorReport {
  readonly runtime: Runtime;
  readonly platform: PlatformVerdict;
  readonly cores: number;
  /** Threads of a rank with native math where none are asked for, by how many ranks share this host. */
  readonly threads: { readonly ofOneRank: number; readonly ofEachOfTwo: number };
  readonly cpu: { readonly model: string | null; readonly features: Readonly<Record<string, boolean>> } | null;
  readonly memory: { readonly totalBytes: number; readonly availableBytes: number } | null;
  readonly sharedMemory: Space & { readonly directory: string; readonly remedy: string } | null;
  /** The native kernels: the level and the file of those that `cpuMath` 'native' opens here, or why there are none. */
  readonly native: { readonly level: string; readonly path: string } | { readonly obstacle: string };
  readonly cuda: CudaReport;
  readonly libraries: readonly LibraryReport[];
  /** Problems: training would fail, or a library that was asked for cannot be used. */
  readonly problems: readonly string[];
}

/**
 * Looks at this machine and writes what it finds.
 *
 * @param options `json`: one JSON object instead of text, of at most `width` columns where words allow it
 * @param environment variables that steer the search
 * @returns the exit code: 0, or 1 if something is broken or the platform is not supported
 */
export async function doctor(
  options: { readonly json: boolean; readonly width: number },
  write: (text: string) => void,
  environment: Environment = processEnvironment(),
): Promise<number> {
  const report = await examine(environment);
  write(options.json ? `${JSON.stringify(report)}\n` : formatReport(report, options.width));
  return report.problems.length === 0 ? 0 : 1;
}

/** Gathers the facts that `doctor` reports. */
export async function examine(environment: Environment): Promise<DoctorReport> {
  const platform = platformVerdict();
  const libc = await examineOpened(LIBC, environment, ({ symbols }) => symbols.gnu_get_libc_version?.() ?? null);
  const { library } = libc;
  const posix = library === undefined ? undefined : ifKnown(() => new Posix(library));
  const native = posix === undefined ? { obstacle: "the C library cannot be opened" } : await examineNative(posix);
  const cudart = await examineOpened(CUDART, environment, ({ symbols, provider }) => {
    const version = provider.out("i32");
    symbols.cudaRuntimeGetVersion(version);
    return cudaVersion(version.value);
  });
  const nvrtc = await examineOpened(NVRTC, environment, nvrtcVersion);
  const driver = await examineOpened(CUDA, environment, () => null);
  const cublas = await examineOpened(CUBLASLT, environment, () => null);
  const cudnn = await examineOpened(CUDNN, environment, cudnnVersion);
  const nccl = await examineOpened(NCCL, environment, ncclVersion);
  const builtFor = nccl.library === undefined ? null : ncclBuild(nccl.library.path)?.cuda ?? null;
  const broken = nccl.report.broken.map((one) => ({ ...one, reason: explainNccl(one) }));
  const version = builtFor === null ? nccl.report.version : `${nccl.report.version} for CUDA ${builtFor}`;
  const of = { cudart: cudart.library, nvrtc: nvrtc.library, cudnn: cudnn.library, nccl: nccl.library };
  const cuda = await examineCuda({ ...of, builtFor }, environment);
  const libraries = [
    ...[libc.report, driver.report, cudart.report, nvrtc.report, cublas.report],
    ...[cudnn.report, { ...nccl.report, version, broken }, examineFile(MPI, environment)],
  ];
  const problems: string[] = [];
  if (platform.support === "none") {
    problems.push(`${platform.os} ${platform.arch} is not supported: ${platform.detail}`);
  }
  if (platform.os === "linux" && libc.library === undefined) problems.push("the C library cannot be opened");
  if ("isBroken" in native) problems.push(`native kernels: ${native.obstacle}`);
  for (const { name, broken } of libraries) {
    for (const { path, reason } of broken) problems.push(`${name}: ${path}: ${reason}`);
  }
  problems.push(...await moduleProblems(), ...cuda.problems);
  const report = {
    runtime: runtime(),
    platform,
    cores: coreCount(),
    threads: { ofOneRank: threadsOfRank(1), ofEachOfTwo: threadsOfRank(2) },
    cpu: posix === undefined ? null : readCpu(posix, platform.arch),
    memory: posix === undefined ? null : readMemory(posix),
    sharedMemory: posix === undefined ? null : readSharedMemory(posix, environment),
    native: "level" in native ? native : { obstacle: native.obstacle },
    cuda,
    libraries,
    problems,
  };
  for (const one of [driver, cudart, nvrtc, cublas, cudnn, nccl, libc]) one.library?.close();
  return report;
}

/** Opens the native kernels that a device would open. A library that exists and does not work is reported as broken. */
async function examineNative(
  posix: Posix,
): Promise<
  { readonly level: string; readonly path: string } | { readonly obstacle: string; readonly isBroken?: true }
> {
  try {
    const library = await openNativeLibrary(posix);
    library.close();
    return { level: LEVEL_NAMES[library.level], path: library.path };
  } catch (error) {
    if (error instanceof UnsupportedError) return { obstacle: error.message };
    if (error instanceof FileError || error instanceof LibraryNotFoundError) {
      return { obstacle: error.message, isBroken: true };
    }
    throw error;
  }
}

/** The reason that WASM kernels do not work, which are used where native kernels are not. */
async function moduleProblems(): Promise<readonly string[]> {
  const outcomes = await Promise.allSettled([loadKernelModule("strict"), loadKernelModule("relaxed")]);
  return outcomes.flatMap((outcome) => {
    if (outcome.status === "fulfilled") return [];
    if (isOneOf(outcome.reason, USAGE_ERRORS)) return [`WASM kernels: ${outcome.reason.message}`];
    throw outcome.reason;
  });
}

/** Opens a library and reads its version; one that does not tell it is broken. */
async function examineOpened<T extends BindingTable>(
  spec: LibrarySpec<T>,
  environment: Environment,
  readVersion: (library: Library<T>) => string | null,
): Promise<{ readonly report: LibraryReport; readonly library: Library<T> | undefined }> {
  try {
    const library = await openLibrary(spec, { environment });
    const { path, tried } = library;
    const found = { path, tried: tried.length + 1 } as const;
    try {
      const broken = brokenOf(tried);
      return { library, report: reportOf(spec, { ...found, state: "loaded", version: readVersion(library), broken }) };
    } catch (error) {
      if (!(error instanceof NativeError)) throw error;
      library.close();
      const broken = [...brokenOf(tried), { path, reason: error.message }];
      return { library: undefined, report: reportOf(spec, { ...found, state: "broken", version: null, broken }) };
    }
  } catch (error) {
    if (!(error instanceof LibraryNotFoundError)) throw error;
    const broken = brokenOf(error.tried);
    const found = { path: broken[0]?.path ?? null, version: null, broken, tried: error.tried.length };
    const state = broken.length === 0 ? "missing" : "broken";
    return { library: undefined, report: reportOf(spec, { state, ...found }) };
  }
}

/** The files that the search found and that do not work. */
function brokenOf(tried: LibraryNotFoundError["tried"]): LibraryNotFoundError["tried"] {
  return tried.filter(({ reason }) => !isAbsence(reason));
}

/** Looks for a library's file without opening it. */
function examineFile(source: LibrarySource, environment: Environment): LibraryReport {
  const paths = candidatePaths(source, environment);
  const path = paths.find((file) => ifKnown(() => pathKind(file)) === "file") ?? null;
  const state = path === null ? "missing" : "present";
  return reportOf(source, { state, path, version: null, broken: [], tried: paths.length });
}

/** The report on a library: the search's result with the facts that hold in any case. */
function reportOf(
  { name, gives, remedy }: LibrarySource,
  found: Omit<LibraryReport, "name" | "gives" | "remedy">,
): LibraryReport {
  return { name, ...found, gives, remedy };
}

/** The result of an action; undefined where the system refuses to answer. */
function ifKnown<T>(action: () => T): T | undefined {
  try {
    return action();
  } catch (error) {
    const isUnknown = error instanceof NativeError || error instanceof UnsupportedError || error instanceof FileError;
    if (isUnknown) return undefined;
    throw error;
  }
}

/** Processor flags that decide how fast native CPU math is, as the kernel names them. */
const FEATURES: Readonly<Record<string, readonly string[]>> = {
  x64: ["avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16"],
  arm64: ["asimd", "bf16", "i8mm", "sve"],
};

function readCpu(posix: Posix, arch: string): DoctorReport["cpu"] {
  const processor = readProcessor(posix);
  if (processor === undefined) return null;
  const names = FEATURES[arch] ?? [];
  const features = Object.fromEntries(names.map((name) => [name, processor.features.has(name)]));
  return { model: processor.model ?? null, features };
}

function readMemory(posix: Posix): DoctorReport["memory"] {
  const text = readSystemText(posix, "/proc/meminfo");
  const bytes = (name: string): number =>
    1024 * Number(new RegExp(`^${name}:\\s*(\\d+) kB`, "m").exec(text ?? "")?.[1]);
  const memory = { totalBytes: bytes("MemTotal"), availableBytes: bytes("MemAvailable") };
  return Number.isFinite(memory.totalBytes + memory.availableBytes) ? memory : null;
}

function readSharedMemory(posix: Posix, environment: Environment): DoctorReport["sharedMemory"] {
  const directory = environment.text("FULLYSHARD_SHM_DIRECTORY") ?? "/dev/shm";
  const remedy = "In a container, its size is set by --shm-size (e.g. 'docker run --shm-size=8g')";
  return ifKnown(() => ({ directory, ...posix.spaceAt(directory), remedy })) ?? null;
}

function readSystemText(posix: Posix, path: string): string | undefined {
  const bytes = ifKnown(() => posix.readFile(path));
  return bytes === undefined ? undefined : new TextDecoder().decode(bytes);
}

/** The report as text for people. The facts that decide stand last, where a terminal shows them: this machine, what is used, problems. */
export function formatReport(report: DoctorReport, width: number): string {
  const { platform, threads, cpu, memory, sharedMemory, problems } = report;
  const features = Object.entries(cpu?.features ?? {}).map(([flag, has]) => `${has ? "+" : "-"}${flag}`);
  const available = memory !== null && `${gib(memory.availableBytes)} of ${gib(memory.totalBytes)} available`;
  const free = sharedMemory !== null &&
    `${sharedMemory.directory}: ${gib(sharedMemory.freeBytes)} of ${gib(sharedMemory.totalBytes)} free`;
  const isScarce = sharedMemory !== null && sharedMemory.totalBytes < 2 ** 30;
  const entry = (name: string, ...texts: readonly string[]): string[] => {
    const lines = texts.flatMap((text) => wrapWords(text, width - COLUMN));
    return lines.map((line, index) => `${(index === 0 ? name : "").padEnd(COLUMN)}${line}`);
  };
  const group = (title: string, libraries: readonly LibraryReport[]): string[] =>
    libraries.length === 0 ? [] : ["", title, ...libraries.flatMap((one) => entry(one.name, ...describeLibrary(one)))];
  const more = group("Not installed (optional):", report.libraries.filter((library) => !isFound(library)));
  const lines = [
    ...more.length === 0 ? [] : [...more.slice(1), ""],
    ...entry("runtime", `${report.runtime.name} ${report.runtime.version}`),
    ...entry("platform", `${platform.os} ${platform.arch}: ${platform.support} support (${platform.detail})`),
    ...entry("cores", `${report.cores}${cpu?.model ? `, ${cpu.model}` : ""}`),
    ...entry(
      "threads",
      `${threads.ofOneRank} with one rank, ${threads.ofEachOfTwo} each with two; --threads overrides`,
    ),
    ...entry("cpu features", features.join(" ") || "unknown"),
    ...entry("cpu math", describeMath(report)),
    ...entry("cuda", ...describeCuda(report.cuda)),
    ...entry("memory", available || "unknown"),
    ...entry(
      "shared memory",
      free || "none: ranks must be Workers of one process",
      ...isScarce ? [sharedMemory.remedy] : [],
    ),
    ...group("Used here:", report.libraries.filter(isFound)),
    "",
    problems.length === 0 ? "No problems." : `Problems (${problems.length}):`,
    ...problems.flatMap((problem) => wrapWords(problem, width - 2).map((line) => `  ${line}`)),
  ];
  return `${lines.join("\n")}\n`;
}

/** Names the best `cpuMath` that works here, and the obstacle to a better one. */
function describeMath({ native }: DoctorReport): string {
  return "level" in native
    ? `native: ${native.level}, ${native.path}`
    : `wasm-relaxed, as there is no native: ${native.obstacle}`;
}

/** The column at which the facts of an entry begin. */
const COLUMN = 15;

function isFound({ state }: LibraryReport): boolean {
  return state === "loaded" || state === "present";
}

/** Describes a library, a fact a line. */
function describeLibrary(library: LibraryReport): string[] {
  const { state, path, version, broken, tried, gives, remedy } = library;
  const facts = isFound(library)
    ? `${version === null ? "" : ` ${version}`}, ${path}`
    : ` (${tried} path${tried === 1 ? "" : "s"} tried)`;
  return [
    `${state}${facts}`,
    ...broken.map(({ path: file, reason }) => `${file}: ${reason}`),
    ...isFound(library) ? [] : [`would give: ${gives}`, remedy],
  ];
}

function gib(bytes: number): string {
  return bytes < 2 ** 30 ? `${(bytes / 2 ** 20).toFixed(0)} MiB` : `${(bytes / 2 ** 30).toFixed(1)} GiB`;
}
