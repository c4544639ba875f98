/**
 * Calls of kernels that run on tensor cores: the form for the heads' dims is compiled and loaded by its first call.
 *
 * @module
 */
import { CUDA_LAUNCH_CONFIG, CUDART_CONSTANTS } from "../../../ffi/bindings/cudart.ts";
import type { Handle } from "../../../ffi/types.ts";
import { float32 } from "../../dtype.ts";
import { productReader } from "../kernels/accesses.ts";
import { dtypeArgument, numberArgument } from "../kernels/arguments.ts";
import type { Arguments, KernelEntry } from "../kernels/signature.ts";
import type { KernelCall } from "../kernels/table.ts";
import { argumentBlock } from "./arguments.ts";
import type { Launcher } from "./kernels.ts";
import { MOST_BLOCKS } from "./launches.ts";
import { functionLoader } from "./loader.ts";
import { dtypeParameters, entryPoint } from "./source.ts";
import {
  formName,
  passName,
  runsOnTensorCores,
  TENSOR_THREADS,
  type TensorForm,
  tensorFormsOf,
  type TensorPass,
} from "./tensor_cores.ts";
import { cardEntry, formText } from "./texts.ts";

/** A call that runs on tensor cores where its element type does, and else as `plain` does. */
export function tensorCall(launcher: Launcher, name: string, entry: KernelEntry, plain: KernelCall): KernelCall {
  const forms = tensorFormsOf(name).map((form) => ({ form, call: formCall(launcher, name, entry, form) }));
  return (args) => {
    if (!runsOnTensorCores(dtypeArgument(args, "dtype"))) return plain(args);
    const [headDim, valueDim] = [numberArgument(args, "headDim"), numberArgument(args, "valueDim")];
    // More dims than the last form's are refused by the checks of any call.
    const found = forms.find(({ form }) => headDim <= form.headDim && valueDim <= form.valueDim) ?? forms.at(-1);
    found?.call(args);
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
  if (form.scratch === undefined) return enqueue;
  const scratchOf = productReader(form.scratch, entry);
  return (args) => {
    const room = Math.max(1, scratchOf(args));
    const scratch = allocator.allocate(float32.byteLength * room, `scratch of ${name}`);
    try {
      enqueue({ ...args, room, scratch });
    } finally {
      allocator.free(scratch);
    }
  };
}

/** What a pass of a form is launched with. */
interface PassParts {
  readonly form: TensorForm;
  readonly pass: TensorPass;
  /** The address of the arguments, in a list. */
  readonly list: BigUint64Array<ArrayBuffer>;
  readonly load: (point: string) => Handle<"cudaKernel_t">;
}

/** Makes what launches a pass. */
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
  const planes = productReader(pass.planes, entry);
  const [size, rows] = pass.tile;
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
    const blocks = planes(args) * Math.ceil(numberArgument(args, size) / rows);
    config.set("gridDim.x", Math.max(1, Math.min(MOST_BLOCKS, blocks)));
    config.set("stream", stream);
    symbols.cudaLaunchKernelExC(config, kernel, list);
  };
}
