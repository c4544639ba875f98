/**
 * Calls of kernels on tensor cores: the form for the heads' dims is compiled and loaded by its first call.
 *
 * @module
 */
import { at } from "../../at.ts";
import { CUDA_LAUNCH_CONFIG, CUDART_CONSTANTS } from "../../ffi/bindings/cudart.ts";
import type { Handle } from "../../ffi/types.ts";
import { dtypeArgument } from "../kernels/arguments.ts";
import type { Arguments, KernelEntry } from "../kernels/signature.ts";
import type { KernelCall } from "../kernels/table.ts";
import { argumentBlock } from "./arguments.ts";
import type { Launcher } from "./kernels.ts";
import { functionLoader } from "./loader.ts";
import { dtypeParameters, entryPoint } from "./source.ts";
import { formPlace, formScratchReader, passGridReader } from "./spread.ts";
import { formName, passName, TENSOR_THREADS, type TensorForm, tensorFormsOf, type TensorPass } from "./tensor_cores.ts";
import { cardEntry, formText } from "./texts.ts";

/** A call that uses tensor cores if its dtype allows it, else `plain`. */
export function tensorCall(launcher: Launcher, name: string, entry: KernelEntry, plain: KernelCall): KernelCall {
  const forms = tensorFormsOf(name);
  const calls = forms.map((form) => formCall(launcher, name, entry, form));
  return (args) => {
    const place = formPlace(forms, args);
    const call = place === undefined ? plain : at(calls, place, "form");
    call(args);
  };
}

/** A call of one form: its passes, one after the other. */
function formCall(launcher: Launcher, name: string, entry: KernelEntry, form: TensorForm): KernelCall {
  const { allocator, shared, stream } = launcher;
  const { provider } = launcher.cudart;
  const { bytes, write } = argumentBlock(name, cardEntry(entry, form.scratch !== undefined), shared);
  const list = BigUint64Array.of(BigInt(provider.numberOf(provider.addressOf(bytes))));
  const load = functionLoader(launcher, name, formName(name, form), () => formText(launcher.texts, name, form));
  const launches = form.passes.map((pass) => passLaunch(launcher, name, entry, { form, pass, list, load }));
  const enqueue = (args: Arguments): void => {
    write(args);
    const { handle } = stream();
    for (const launch of launches) launch(args, handle);
  };
  const scratchOf = formScratchReader(form, entry);
  if (scratchOf === undefined) return enqueue;
  return (args) => {
    const { room, byteLength } = scratchOf(args);
    const scratch = allocator.allocate(byteLength, `scratch of ${name}`);
    try {
      enqueue({ ...args, room, scratch });
    } finally {
      allocator.free(scratch);
    }
  };
}

interface PassParts {
  readonly form: TensorForm;
  readonly pass: TensorPass;
  /** The address of the arguments, in a list. */
  readonly list: BigUint64Array<ArrayBuffer>;
  readonly load: (point: string) => Handle<"cudaKernel_t">;
}

function passLaunch(
  { cudart, index }: Launcher,
  name: string,
  entry: KernelEntry,
  { form, pass, list, load }: PassParts,
): (args: Arguments, stream: Handle<"cudaStream_t">) => void {
  const { symbols, provider } = cudart;
  const parameters = dtypeParameters(entry);
  const config = provider.struct(CUDA_LAUNCH_CONFIG);
  config.set("blockDim.x", TENSOR_THREADS);
  config.set("dynamicSmemBytes", pass.sharedBytes);
  const gridOf = passGridReader(pass, entry);
  const loaded = new Map<number, Handle<"cudaKernel_t">>();
  return (args, stream) => {
    const { code } = dtypeArgument(args, "dtype");
    let kernel = loaded.get(code);
    if (kernel === undefined) {
      kernel = load(entryPoint(passName(name, form, pass), parameters, args));
      const { cudaFuncAttributeMaxDynamicSharedMemorySize: attribute } = CUDART_CONSTANTS;
      cudart.need("cudaKernelSetAttributeForDevice")(kernel, attribute, pass.sharedBytes, index);
      loaded.set(code, kernel);
    }
    config.set("gridDim.x", gridOf(args));
    config.set("stream", stream);
    symbols.cudaLaunchKernelExC(config, kernel, list);
  };
}
