/**
 * The kernels of a card: each is compiled and loaded by its first call, and launched on the stream under way with arguments that
 * follow from its entry.
 *
 * @module
 */
import { CUDA_LAUNCH_CONFIG } from "../../../ffi/bindings/cudart.ts";
import type { Handle } from "../../../ffi/types.ts";
import { DTYPES, float32 } from "../../dtype.ts";
import { FileError, InternalError, UnsupportedError } from "../../errors.ts";
import { permissionRemedy } from "../../runtime/permissions.ts";
import type { Allocator } from "../allocator.ts";
import { productReader } from "../kernels/accesses.ts";
import { dtypeArgument, numberArgument } from "../kernels/arguments.ts";
import type { Arguments, KernelEntry, KernelTable } from "../kernels/signature.ts";
import {
  isKernelName,
  type KernelCall,
  type KernelName,
  KERNELS,
  type Kernels,
  makeKernels,
} from "../kernels/table.ts";
import { argumentBlock, type SharedArguments } from "./arguments.ts";
import type { KernelCompiler } from "./compiler.ts";
import { type Launch, LAUNCHES, type Launches, THREADS } from "./launches.ts";
import type { Cudart } from "./libraries.ts";
import { argumentStruct, dtypeParameters, entryPoint, entryPoints, tableDeclarations } from "./source.ts";
import type { CudaStream } from "./streams.ts";

/** Most blocks of a launch; what lies beyond is done by the same blocks. */
const MOST_BLOCKS = 2 ** 20;
/** Most bytes of scratch of all blocks of a launch, unless one block needs more. */
const MOST_SCRATCH = 2 ** 28;

/** The texts of kernels, by the names of their files; `dev` is what all share. */
export type KernelTexts = ReadonlyMap<string, string>;

/** Reads the texts of all kernels. */
export async function readKernelTexts(): Promise<KernelTexts> {
  const files = [["dev", "dev.cuh"], ...Object.keys(LAUNCHES).map((file) => [file, `${file}.cu`] as const)] as const;
  const texts = files.map(async ([key, name]) => {
    const url = new URL(`./kernels/${name}`, import.meta.url);
    try {
      const response = await fetch(url);
      if (!response.ok) throw new Error(`HTTP status ${response.status}`);
      return [key, await response.text()] as const;
    } catch (cause) {
      const detail = permissionRemedy(cause) ?? "the package is incomplete; install it again";
      throw new FileError(url.href, "read", detail, undefined, { cause });
    }
  });
  return new Map(await Promise.all(texts));
}

/** Kernels of the table that are not written for CUDA. */
export function unwrittenKernels(launches: Launches): ReadonlySet<KernelName> {
  return new Set(Object.keys(KERNELS).filter(isKernelName).filter((name) => launchOf(name, launches) === undefined));
}

/** Where a kernel is written; undefined if it is not. */
function launchOf(kernel: string, launches: Launches): { readonly file: string; readonly launch: Launch } | undefined {
  for (const [file, kernels] of Object.entries(launches)) {
    const launch = Object.entries(kernels).find(([name]) => name === kernel)?.[1];
    if (launch !== undefined) return { file, launch };
  }
  return undefined;
}

/** The functions that a call of a kernel runs, in order. */
function functionsOf(kernel: string): readonly string[] {
  const launch = launchOf(kernel, LAUNCHES)?.launch;
  return launch !== undefined && "after" in launch ? [kernel, `${kernel}After`] : [kernel];
}

/** A kernel's entry with what a card passes besides: the scratch of all blocks, and the float32 of one (`room`). */
function cardEntry(entry: KernelEntry, { scratch }: Launch): KernelEntry {
  if (scratch === undefined) return entry;
  return {
    ...entry,
    values: { ...entry.values, room: "size" },
    arrays: { ...entry.arrays, scratch: { writes: "float32", shape: ["room"] } },
  };
}

/** The whole text of a kernel, as the compiler gets it. */
export function kernelText(texts: KernelTexts, kernel: string, file: string): string {
  const text = (name: string): string => {
    const found = texts.get(name);
    if (found === undefined) throw new InternalError(`no text of '${name}'`);
    return found;
  };
  const table: KernelTable = KERNELS;
  const entry = (name: string): KernelEntry => {
    const [found, launch] = [table[name], launchOf(name, LAUNCHES)?.launch];
    if (found === undefined || launch === undefined) throw new InternalError(`no kernel '${name}'`);
    return cardEntry(found, launch);
  };
  const structs = Object.keys(LAUNCHES[file] ?? {}).map((name) => argumentStruct(name, entry(name)));
  const points = functionsOf(kernel).map((name) => entryPoints(name, kernel, entry(kernel), THREADS));
  return [text("dev"), tableDeclarations(), ...structs, `#line 1 "${file}.cu"\n`, text(file), ...points].join("");
}

/** What calls of kernels need. */
export interface Launcher {
  readonly device: string;
  readonly cudart: Cudart;
  readonly compiler: KernelCompiler;
  readonly texts: KernelTexts;
  readonly launches: Launches;
  readonly allocator: Allocator;
  /** What calls are given besides their arguments. */
  readonly shared: SharedArguments;
  /** Throws where a kernel must not be loaded now. */
  readonly mayLoad: (kernel: string) => void;
  /** The stream under way. */
  readonly stream: () => CudaStream;
}

/** Makes what tells over how many blocks a call is spread. */
function blocksReader(launch: Launch, entry: KernelEntry): (args: Arguments) => number {
  if ("elements" in launch) {
    const elements = productReader(launch.elements, entry);
    return (args) => Math.ceil(elements(args) / THREADS);
  }
  const rows = productReader(launch.rows, entry);
  if ("tiles" in launch) {
    const [a, b, of] = launch.tiles;
    return (args) => rows(args) * (Math.ceil(numberArgument(args, a) / of) + Math.ceil(numberArgument(args, b) / of));
  }
  if (launch.tile === undefined) return rows;
  const [size, of] = launch.tile;
  return (args) => rows(args) * Math.ceil(numberArgument(args, size) / of);
}

/** All kernels of a card. One that is not written is refused when it is called. */
export function cudaKernels(launcher: Launcher): Kernels {
  return makeKernels((name, entry) => {
    const found = launchOf(name, launcher.launches);
    if (found === undefined) {
      return () => {
        throw new UnsupportedError(`Cannot run kernel '${name}' on ${launcher.device}: it is not written for CUDA yet`);
      };
    }
    return kernelCall(launcher, name, entry, found.file, found.launch);
  });
}

function kernelCall(
  { cudart, compiler, texts, allocator, shared, mayLoad, stream }: Launcher,
  name: string,
  entry: KernelEntry,
  file: string,
  launch: Launch,
): KernelCall {
  const { symbols, provider } = cudart;
  const { bytes, write } = argumentBlock(name, cardEntry(entry, launch), shared);
  const parameters = dtypeParameters(entry);
  const config = provider.struct(CUDA_LAUNCH_CONFIG);
  config.set("blockDim.x", THREADS);
  const list = BigUint64Array.of(BigInt(provider.numberOf(provider.addressOf(bytes))));
  let library: Handle<"cudaLibrary_t"> | undefined;
  const load = (point: string): Handle<"cudaKernel_t"> => {
    mayLoad(name);
    if (library === undefined) {
      const place = provider.out("cudaLibrary_t");
      const code = compiler.code(name, kernelText(texts, name, file));
      cudart.need("cudaLibraryLoadData")(place, code, null, null, 0, null, null, 0);
      library = place.value;
    }
    const place = provider.out("cudaKernel_t");
    cudart.need("cudaLibraryGetKernel")(place, library, point);
    return place.value;
  };
  // The functions of a call in order, each by the codes of the call's element types.
  const runs = functionsOf(name).map((which) => ({ which, loaded: new Map<number, Handle<"cudaKernel_t">>() }));
  const enqueue = (args: Arguments, blocks: number): void => {
    write(args);
    config.set("stream", stream().handle);
    let code = 0;
    for (const parameter of parameters) code = code * DTYPES.length + dtypeArgument(args, parameter).code;
    let grid = blocks;
    for (const { which, loaded } of runs) {
      let kernel = loaded.get(code);
      if (kernel === undefined) loaded.set(code, kernel = load(entryPoint(which, parameters, args)));
      config.set("gridDim.x", grid);
      symbols.cudaLaunchKernelExC(config, kernel, list);
      grid = 1;
    }
  };
  const blocksOf = blocksReader(launch, entry);
  // One block even where there is nothing: some kernels tell that.
  const atMost = (most: number, args: Arguments): number => Math.max(1, Math.min(most, blocksOf(args)));
  if (launch.scratch === undefined) return (args) => enqueue(args, atMost(MOST_BLOCKS, args));
  const products = launch.scratch.map((product) => productReader(product, entry));
  return (args) => {
    const room = products.reduce((sum, product) => sum + product(args), 0);
    const bytes = float32.byteLength * room;
    const blocks = atMost(Math.floor(MOST_SCRATCH / bytes), args);
    const scratch = allocator.allocate(blocks * bytes, `scratch of ${name}`);
    try {
      enqueue({ ...args, room, scratch }, blocks);
    } finally {
      allocator.free(scratch);
    }
  };
}
