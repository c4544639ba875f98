/**
 * Builds the doubles of the CUDA libraries with g++, and makes an environment in which they are found by the ordinary overrides.
 * They are kept under `.cache/`, by the text of their sources, so that files of tests and both runtimes share one build.
 *
 * @module
 */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { openProvider } from "../../../src/ffi/mod.ts";
import type { Library } from "../../../src/ffi/types.ts";
import { type Environment, environmentFrom, processEnvironment } from "../../../src/runtime/env.ts";

const folder = fileURLToPath(new URL(".", import.meta.url));
const cache = fileURLToPath(new URL("../../../.cache/twin", import.meta.url));

/** Tools that the doubles need and that are missing; undefined where they can be built. */
export function lackingForTwin(): string | undefined {
  if (process.platform !== "linux" || process.arch !== "x64") return "Linux on x86-64";
  return ["g++", "flock"].find((tool) => spawnSync(tool, ["--version"]).status !== 0);
}

/** Functions by which tests ask the double of the CUDA runtime. */
const TWIN_BINDINGS = {
  twinReport: { args: ["buffer", "usize"], result: "i32", check: "none" },
  twinLog: { args: ["buffer", "usize"], result: "i32", check: "none" },
  // captures and graphs that there are
  twinGraphs: { args: [], result: "i32", check: "none" },
  // of threads and blocks: 0 ascending, 1 descending, 2 random
  twinSetOrder: { args: ["i32"], result: "i32", check: "status" },
  // 0 nothing, 1 the driver, 2 a new driver, 3 the card
  twinSetMissing: { args: ["i32"], result: "i32", check: "status" },
} as const;

/** The built doubles. */
export interface CudaTwin {
  /** The double of the CUDA runtime, as tests see it. */
  readonly runtime: Library<typeof TWIN_BINDINGS>;
  /** Variables that name the doubles as the libraries to load, for processes. */
  readonly variables: Readonly<Record<string, string>>;
  /** The same, for this process. */
  readonly environment: Environment;
  /** Variables that name the double on which nothing runs, for processes that measure what the host does. */
  readonly idle: Readonly<Record<string, string>>;
}

/** The races and other faults that were seen since the last call, a line each; waits for all work. */
export function twinReports({ runtime }: Pick<CudaTwin, "runtime">): string {
  const text = new Uint8Array(2 ** 14);
  runtime.symbols.twinReport(text, text.byteLength);
  return new TextDecoder().decode(text.subarray(0, text.indexOf(0)));
}

/** Streams that the double counts in: those of a device, and those in a graph. */
const STREAMS = 8;

/** Something that was enqueued. */
export interface TwinOperation {
  /** 1 compute, 2 gather, 3 reduce, 4 copy, and from 5 on the same in a graph; 0 is the host. */
  readonly stream: number;
  /** Its number in its stream. */
  readonly index: number;
  /** The last number of each stream that it comes after; its own for its own stream. */
  readonly after: readonly number[];
  readonly name: string;
}

/** The work that was enqueued since the last call, in order. */
export function twinLog({ runtime }: Pick<CudaTwin, "runtime">): readonly TwinOperation[] {
  const text = new Uint8Array(2 ** 22);
  const length = runtime.symbols.twinLog(text, text.byteLength);
  assert.ok(length < text.byteLength, "the log is longer than there is room for");
  return new TextDecoder().decode(text.subarray(0, length)).split("\n").slice(0, -1).map((line) => {
    const [stream = NaN, index = NaN, ...after] = line.split(" ", 2 + STREAMS).map(Number);
    return { stream, index, after: [0, ...after], name: line.split(" ").slice(2 + STREAMS).join(" ") };
  });
}

/** Functions by which tests ask the double of NCCL. */
const NCCL_TWIN_BINDINGS = {
  // windows, and pieces of memory for them, that this process has
  twinNcclMemory: { args: [], result: "i32", check: "none" },
  // an asynchronous error on each communicator
  twinNcclBreak: { args: [], result: "i32", check: "status" },
  // 1: a zero-CTA gather of which one side alone is registered is a fault
  twinStrictWindows: { args: ["i32"], result: "i32", check: "status" },
} as const;

/** The double of NCCL that an environment names. */
export async function openNcclTwin(
  environment: Environment = processEnvironment(),
): Promise<Library<typeof NCCL_TWIN_BINDINGS>> {
  const provider = await openProvider();
  const path = environment.text("FULLYSHARD_NCCL_LIBRARY") ?? assert.fail("no double is named");
  return provider.load("double of NCCL", path, NCCL_TWIN_BINDINGS);
}

/** Functions by which tests ask the double of cuDNN. */
const CUDNN_TWIN_BINDINGS = {
  // descriptors that there are
  twinCudnnDescriptors: { args: [], result: "i32", check: "none" },
} as const;

/** The double of cuDNN that an environment names. */
export async function openCudnnTwin(environment: Environment): Promise<Library<typeof CUDNN_TWIN_BINDINGS>> {
  const provider = await openProvider();
  const path = environment.text("FULLYSHARD_CUDNN_LIBRARY") ?? assert.fail("no double is named");
  return provider.load("double of cuDNN", path, CUDNN_TWIN_BINDINGS);
}

/** Builds the doubles, or takes those of the same sources. */
export async function buildCudaTwin(): Promise<CudaTwin> {
  const sources = readdirSync(folder).filter((name) => !name.endsWith(".ts")).sort();
  const hash = createHash("sha256");
  for (const name of sources) hash.update(readFileSync(`${folder}${name}`));
  const place = `${cache}/${hash.digest("hex").slice(0, 16)}`;
  if (!existsSync(place)) {
    mkdirSync(cache, { recursive: true });
    const made = mkdtempSync(`${cache}/building-`);
    const linked = [`${made}/cudart.so`];
    const first = [
      compile("cudart", made, []),
      // Kernels name the double that they are linked to by its last place.
      compile("nvrtc", made, [`-DTWIN_FOLDER="${folder}"`, `-DTWIN_RUNTIME="${place}/cudart.so"`]),
      compile("idle", made, []),
    ];
    const second = ["cublaslt", "nccl", "cudnn"].map((name) => compile(name, made, linked));
    const build = `test -e '${place}' || { ${[...first, ...second].join(" && ")} && mv '${made}' '${place}'; }`;
    // Processes that need the doubles at the same time wait for the one that builds them.
    const { status, stderr } = spawnSync("flock", [`${cache}/building.lock`, "sh", "-c", build], { encoding: "utf8" });
    assert.equal(status, 0, `g++ cannot build the doubles: ${stderr}`);
    rmSync(made, { recursive: true, force: true });
  }
  const variables = variablesOf((name) => `${place}/${name}.so`, `${place}/kernels`);
  const idle = variablesOf(() => `${place}/idle.so`, `${place}/idle-kernels`);
  const environment = environmentFrom((name) => variables[name]);
  return { ...await openTwin(environment), variables, environment, idle };
}

function variablesOf(library: (name: string) => string, kernels: string): Readonly<Record<string, string>> {
  return {
    FULLYSHARD_CUDART_LIBRARY: library("cudart"),
    FULLYSHARD_NVRTC_LIBRARY: library("nvrtc"),
    FULLYSHARD_CUBLASLT_LIBRARY: library("cublaslt"),
    FULLYSHARD_NCCL_LIBRARY: library("nccl"),
    FULLYSHARD_CUDNN_LIBRARY: library("cudnn"),
    FULLYSHARD_KERNEL_CACHE: kernels,
  };
}

/** The double of the CUDA runtime that an environment names. */
export async function openTwin(environment: Environment = processEnvironment()): Promise<Pick<CudaTwin, "runtime">> {
  const provider = await openProvider();
  const path = environment.text("FULLYSHARD_CUDART_LIBRARY") ?? assert.fail("no double is named");
  return { runtime: provider.load("double of the CUDA runtime", path, TWIN_BINDINGS) };
}

/** The shell command that builds a double from its source. */
function compile(name: string, to: string, options: readonly string[]): string {
  const soname = `-Wl,-soname,fullyshard-twin-${name}.so`;
  const flags = ["-std=c++17", "-O2", "-Wall", "-shared", "-fPIC", "-fno-strict-aliasing", soname, "-ldl"];
  return ["g++", `${folder}${name}.cpp`, "-o", `${to}/${name}.so`, ...flags, ...options].map((one) => `'${one}'`).join(
    " ",
  );
}
