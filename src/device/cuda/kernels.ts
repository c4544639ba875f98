/**
 * The kernels of a card. Each is compiled and loaded by its first call, and launched on the current stream with arguments that
 * follow from its entry.
 *
 * @module
 */
import { DTYPES } from "../../dtype.ts";
import { UnsupportedError } from "../../errors.ts";
import { CUDA_LAUNCH_CONFIG } from "../../ffi/bindings/cudart.ts";
import type { Handle } from "../../ffi/types.ts";
import type { Allocator } from "../allocator.ts";
import { dtypeArgument } from "../kernels/arguments.ts";
import type { Arguments, KernelEntry } from "../kernels/signature.ts";
import { type KernelCall, type Kernels, makeKernels } from "../kernels/table.ts";
import { argumentBlock, type SharedArguments } from "./arguments.ts";
import { type Launch, type Launches, launchOf, THREADS } from "./launches.ts";
import { functionLoader, type Loader } from "./loader.ts";
import { dtypeParameters, entryPoint } from "./source.ts";
import { gridReader, scratchReader } from "./spread.ts";
import type { CudaStream } from "./streams.ts";
import { tensorCall } from "./tensor_calls.ts";
import { tensorFormsOf } from "./tensor_cores.ts";
import { cardEntry, functionsOf, kernelText, type KernelTexts } from "./texts.ts";

/** Parts that calls of kernels use. */
export interface Launcher extends Loader {
  readonly device: string;
  /** The card's number for this process. */
  readonly index: number;
  readonly texts: KernelTexts;
  readonly launches: Launches;
  readonly allocator: Allocator;
  /** Memory that all kernels use besides their arguments. */
  readonly shared: SharedArguments;
  readonly stream: () => CudaStream;
}

/** All kernels of a card. A kernel that is not implemented is refused when it is called. */
export function cudaKernels(launcher: Launcher): Kernels {
  return makeKernels((name, entry) => {
    const found = launchOf(name, launcher.launches);
    if (found === undefined) {
      return () => {
        throw new UnsupportedError(`Cannot run kernel '${name}' on ${launcher.device}: it is not written for CUDA yet`);
      };
    }
    const plain = kernelCall(launcher, name, entry, found.file, found.launch);
    return tensorFormsOf(name).length === 0 ? plain : tensorCall(launcher, name, entry, plain);
  });
}

function kernelCall(
  launcher: Launcher,
  name: string,
  entry: KernelEntry,
  file: string,
  launch: Launch,
): KernelCall {
  const { allocator, shared, stream } = launcher;
  const { symbols, provider } = launcher.cudart;
  const { bytes, write } = argumentBlock(name, cardEntry(entry, launch.scratch !== undefined), shared);
  const parameters = dtypeParameters(entry);
  const config = provider.struct(CUDA_LAUNCH_CONFIG);
  config.set("blockDim.x", THREADS);
  const list = BigUint64Array.of(BigInt(provider.numberOf(provider.addressOf(bytes))));
  const load = functionLoader(launcher, name, name, () => kernelText(launcher.texts, name, file));
  // The functions of a call in order, each by the codes of the call's dtypes.
  const functions = functionsOf(name).map((which) => ({ which, loaded: new Map<number, Handle<"cudaKernel_t">>() }));
  const enqueue = (args: Arguments, blocks: number): void => {
    write(args);
    config.set("stream", stream().handle);
    let code = 0;
    for (const parameter of parameters) code = code * DTYPES.length + dtypeArgument(args, parameter).code;
    let grid = blocks;
    for (const { which, loaded } of functions) {
      let kernel = loaded.get(code);
      if (kernel === undefined) loaded.set(code, kernel = load(entryPoint(which, parameters, args)));
      config.set("gridDim.x", grid);
      symbols.cudaLaunchKernelExC(config, kernel, list);
      grid = 1;
    }
  };
  const spreadOf = scratchReader(launch, entry);
  if (spreadOf === undefined) {
    const gridOf = gridReader(launch, entry);
    return (args) => enqueue(args, gridOf(args));
  }
  return (args) => {
    const { blocks, room, byteLength } = spreadOf(args);
    const scratch = allocator.allocate(byteLength, `scratch of ${name}`);
    try {
      enqueue({ ...args, room, scratch }, blocks);
    } finally {
      allocator.free(scratch);
    }
  };
}
