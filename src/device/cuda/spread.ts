/**
 * The number of blocks of each call, and its scratch memory: for launches, and for dry runs, which have no card.
 *
 * @module
 */
import { float32 } from "../../dtype.ts";
import { productReader } from "../kernels/accesses.ts";
import { dtypeArgument, numberArgument } from "../kernels/arguments.ts";
import type { Arguments, KernelEntry } from "../kernels/signature.ts";
import { KERNELS } from "../kernels/table.ts";
import { type Launch, type Launches, launchOf, THREADS } from "./launches.ts";
import { runsOnTensorCores, type TensorForm, tensorFormsOf, type TensorPass } from "./tensor_cores.ts";

/** Largest number of blocks of a launch; the same blocks do the rest. */
const MOST_BLOCKS = 2 ** 20;

/** Largest number of bytes of scratch of a launch, unless one block needs more. */
const MOST_SCRATCH = 2 ** 28;

/** Grid of a call with scratch. */
export interface ScratchSpread {
  readonly blocks: number;
  /** Number of float32 of scratch for the kernel: for one block, or for the full call if one function leaves them to the next. */
  readonly room: number;
  /** Bytes of all scratch. */
  readonly byteLength: number;
}

/**
 * Makes a function that returns the number of blocks of a call, at most `most`. A call with nothing to do has one block too, as
 * some kernels write their result there.
 */
function spreadReader(launch: Launch, entry: KernelEntry): (args: Arguments, most: number) => number {
  const blocksOf = blocksReader(launch, entry);
  return (args, most) => Math.max(1, Math.min(most, MOST_BLOCKS, blocksOf(args)));
}

/** Makes a function that returns the number of blocks that would do all of a call at once. */
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

/** Makes a function that returns the number of blocks of a call without scratch. */
export function gridReader(launch: Launch, entry: KernelEntry): (args: Arguments) => number {
  const spread = spreadReader(launch, entry);
  return (args) => spread(args, MOST_BLOCKS);
}

/** Makes a function that returns the grid and scratch of a call; undefined for kernels without scratch. */
export function scratchReader(launch: Launch, entry: KernelEntry): ((args: Arguments) => ScratchSpread) | undefined {
  if (launch.scratch === undefined) return undefined;
  const spread = spreadReader(launch, entry);
  const products = launch.scratch.map((product) => productReader(product, entry));
  return (args) => {
    const room = Math.max(1, products.reduce((sum, product) => sum + product(args), 0));
    const blockBytes = float32.byteLength * room;
    const blocks = spread(args, Math.floor(MOST_SCRATCH / blockBytes));
    return { blocks, room, byteLength: blocks * blockBytes };
  };
}

/** Makes a function that returns the number of blocks of a pass on tensor cores. */
export function passGridReader(pass: TensorPass, entry: KernelEntry): (args: Arguments) => number {
  const planes = productReader(pass.planes, entry);
  const [size, rows] = pass.tile;
  return (args) => Math.max(1, Math.min(MOST_BLOCKS, planes(args) * Math.ceil(numberArgument(args, size) / rows)));
}

/** Makes a function that returns the scratch of a form's calls; undefined for forms without scratch. */
export function formScratchReader(
  form: TensorForm,
  entry: KernelEntry,
): ((args: Arguments) => Omit<ScratchSpread, "blocks">) | undefined {
  if (form.scratch === undefined) return undefined;
  const numbers = productReader(form.scratch, entry);
  return (args) => {
    const room = Math.max(1, numbers(args));
    return { room, byteLength: float32.byteLength * room };
  };
}

/** Index in `forms` of a call's form; undefined if the call does not use tensor cores. */
export function formPlace(forms: readonly TensorForm[], args: Arguments): number | undefined {
  if (forms.length === 0 || !runsOnTensorCores(dtypeArgument(args, "dtype"))) return undefined;
  const [headDim, valueDim] = [numberArgument(args, "headDim"), numberArgument(args, "valueDim")];
  const place = forms.findIndex((form) => headDim <= form.headDim && valueDim <= form.valueDim);
  return place < 0 ? forms.length - 1 : place; // checks of the call refuse more dims than the last form's
}

/** Makes a function that returns the bytes that a call of a kernel allocates until it returns. */
export function scratchBytesReader(launches: Launches): (kernel: string, args: Arguments) => number {
  const readers = new Map<string, (args: Arguments) => number>();
  for (const [kernel, entry] of Object.entries<KernelEntry>(KERNELS)) {
    const launch = launchOf(kernel, launches)?.launch;
    if (launch === undefined) continue;
    const plain = scratchReader(launch, entry);
    const forms = tensorFormsOf(kernel);
    const ofForms = forms.map((form) => formScratchReader(form, entry));
    if ([plain, ...ofForms].every((reader) => reader === undefined)) continue;
    readers.set(kernel, (args) => {
      const place = formPlace(forms, args);
      const reader = place === undefined ? plain : ofForms[place];
      return reader === undefined ? 0 : reader(args).byteLength;
    });
  }
  return (kernel, args) => {
    const reader = readers.get(kernel);
    return reader === undefined ? 0 : reader(args);
  };
}
