/**
 * The memory that a kernel's call reads and writes, and the operations that it computes, derived from its entry and its
 * arguments: for checks, and for devices that compute nothing.
 *
 * @module
 */
import { at } from "../../at.ts";
import { type DType, DTYPES, uint8 } from "../../dtype.ts";
import { InternalError } from "../../errors.ts";
import { type DevicePtr, devicePtr } from "../device.ts";
import { dtypeArgument, listArgument, numberArgument } from "./arguments.ts";
import { type Arguments, type ArrayKind, CONSTANTS, type Dim, type KernelEntry, MAX_DIMS } from "./signature.ts";

/** A range of memory that a call may touch. */
export interface Access {
  /** The parameter's name. */
  readonly parameter: string;
  readonly direction: "reads" | "writes" | "updates";
  readonly dtype: DType;
  readonly address: DevicePtr;
  /** Bytes from the first element to the end of the last, with the gaps between strided rows; 0 without elements. */
  readonly byteLength: number;
  /** Bytes of the elements, each counted once. */
  readonly movedBytes: number;
}

/**
 * The accesses of a call: one for each address given, and one for the status record if the kernel may fault.
 *
 * @param status address of the device's status record
 */
export function accessesOf(entry: KernelEntry, args: Arguments, status: DevicePtr): Access[] {
  const accesses: Access[] = [];
  for (const [parameter, kind] of Object.entries(entry.arrays)) {
    if (kind.optional && args[parameter] === undefined) continue;
    const { elements, span } = extentOf(kind, entry, args);
    const [direction, dtype] = [directionOf(kind, entry, args), dtypeOf(kind, args)];
    const [byteLength, movedBytes] = [span * dtype.byteLength, elements * dtype.byteLength];
    for (const address of kind.list ? listArgument(args, parameter) : [numberArgument(args, parameter)]) {
      accesses.push({ parameter, direction, dtype, address: devicePtr(address), byteLength, movedBytes });
    }
  }
  if (entry.faults) {
    const [byteLength, movedBytes] = [CONSTANTS.STATUS_BYTES, CONSTANTS.STATUS_BYTES];
    accesses.push({ parameter: "status", direction: "updates", dtype: uint8, address: status, byteLength, movedBytes });
  }
  return accesses;
}

/** Floating-point operations of a call. */
export function flopsOf(entry: KernelEntry, args: Arguments): number {
  return entry.flops === undefined ? 0 : productOf(entry.flops, entry, args);
}

function directionOf(kind: ArrayKind, entry: KernelEntry, args: Arguments): Access["direction"] {
  if ("reads" in kind) return "reads";
  if ("updates" in kind) return "updates";
  return kind.updatesIf !== undefined && productOf([kind.updatesIf], entry, args) !== 0 ? "updates" : "writes";
}

const BY_NAME: ReadonlyMap<string, DType> = new Map(DTYPES.map((dtype) => [dtype.name, dtype]));

/** dtype of an array: the one that its entry names, or the value of the dtype argument of that name. */
function dtypeOf(kind: ArrayKind, args: Arguments): DType {
  return fixedDType(kind) ?? dtypeArgument(args, dtypeName(kind));
}

/** Makes a function that reads the dtype of an array from the arguments of many calls. */
function dtypeReader(kind: ArrayKind): (args: Arguments) => DType {
  const [fixed, name] = [fixedDType(kind), dtypeName(kind)];
  return fixed === undefined ? (args) => dtypeArgument(args, name) : () => fixed;
}

/** The dtype that an array has in every call; undefined if an argument says it. */
export function fixedDType(kind: ArrayKind): DType | undefined {
  return BY_NAME.get(dtypeName(kind));
}

/** Name of an array's dtype, or of the argument that is its dtype. */
export function dtypeName(kind: ArrayKind): string {
  return "reads" in kind ? kind.reads : "updates" in kind ? kind.updates : kind.writes;
}

/** Size of an array. */
interface Extent {
  elements: number;
  /** Number of elements from the first to the last, with gaps. */
  span: number;
}

/** A list that is refilled without allocating a new array. */
class SizeList {
  readonly values: number[] = new Array<number>(2 * MAX_DIMS).fill(0);
  count = 0;

  add(size: number): void {
    this.values[this.count++] = size;
  }

  /** Product of the sizes from index `first` on. */
  product(first: number = 0): number {
    let product = 1;
    for (let i = first; i < this.count; i++) product *= at(this.values, i, "size");
    return product;
  }
}

/** Appends sizes read from a call's arguments. */
type SizesReader = (args: Arguments, sizes: SizeList) => void;

/** Makes a function that reads an array's extent from the arguments of a call. It returns the same object each time. */
function extentReader(kind: ArrayKind, entry: KernelEntry): (args: Arguments) => Extent {
  if (kind.strides === undefined) {
    const [read, extent] = [productReader(kind.shape, entry), { elements: 0, span: 0 }];
    return (args) => {
      extent.elements = extent.span = read(args);
      return extent;
    };
  }
  const [readShape, readStrides] = [sizesReader(kind.shape, entry), sizesReader(kind.strides, entry)];
  const [shape, strides, extent] = [new SizeList(), new SizeList(), { elements: 0, span: 0 }];
  return (args) => {
    shape.count = strides.count = 0;
    readShape(args, shape);
    readStrides(args, strides);
    if (kind.transposed !== undefined && args[kind.transposed] === true) swapLast(shape);
    extent.elements = shape.product();
    extent.span = extent.elements === 0 ? 0 : shape.product(strides.count);
    for (let dim = 0; dim < strides.count && extent.elements > 0; dim++) {
      extent.span += at(strides.values, dim, "stride") * (at(shape.values, dim, "size") - 1);
    }
    return extent;
  };
}

/** Extent readers by array; they keep no state between calls. */
const READERS = new WeakMap<ArrayKind, ReturnType<typeof extentReader>>();

function extentOf(kind: ArrayKind, entry: KernelEntry, args: Arguments): Extent {
  let read = READERS.get(kind);
  if (read === undefined) READERS.set(kind, read = extentReader(kind, entry));
  return read(args);
}

function swapLast({ values, count }: SizeList): void {
  const last = at(values, count - 1, "size");
  values[count - 1] = at(values, count - 2, "size");
  values[count - 2] = last;
}

/**
 * Makes a function that checks, before a kernel is called, that all arrays of the call lie inside the device's memory.
 *
 * @param begin first address of the memory
 * @param end one past the last
 */
export function boundsOf(kernel: string, entry: KernelEntry, begin: number, end: number): (args: Arguments) => void {
  const arrays = Object.entries(entry.arrays).map(([name, kind]) => ({
    name,
    dtype: dtypeReader(kind),
    extent: extentReader(kind, entry),
  }));
  const requireInside = (name: string, address: number, bytes: number): void => {
    if (address >= begin && address + bytes <= end) return;
    const memory = `memory lies in [${begin}, ${end})`;
    throw new InternalError(`'${kernel}' takes ${bytes} bytes at ${address} for '${name}', but ${memory}`);
  };
  return (args) => {
    for (let i = 0; i < arrays.length; i++) {
      const array = arrays[i];
      if (array === undefined) break;
      const { name, dtype, extent } = array;
      const value = args[name];
      if (value === undefined) continue;
      const bytes = extent(args).span * dtype(args).byteLength;
      if (typeof value === "number") requireInside(name, value, bytes);
      else for (const address of listArgument(args, name)) requireInside(name, address, bytes);
    }
  };
}

export function productOf(dims: readonly Dim[], entry: KernelEntry, args: Arguments): number {
  return productReader(dims, entry)(args);
}

/** Makes a function that reads the product of dims from the arguments of many calls. */
export function productReader(dims: readonly Dim[], entry: KernelEntry): (args: Arguments) => number {
  const { constant, names } = factorsOf(dims);
  return (args) => {
    let product = constant;
    for (let i = 0; i < names.length; i++) product *= factorOf(args, at(names, i, "factor"), entry);
    return product;
  };
}

/** The numbers of a product, multiplied, and the names of its other factors. */
export function factorsOf(dims: readonly Dim[]): { readonly constant: number; readonly names: readonly string[] } {
  let constant = 1;
  const names: string[] = [];
  for (const factor of dims.flat()) {
    if (typeof factor === "number") constant *= factor;
    else if (isConstant(factor)) constant *= CONSTANTS[factor];
    else names.push(factor);
  }
  return { constant, names };
}

/** A factor of a call by its name: a number, a switch as 0 or 1, the length of a list of arrays, the product of a shape. */
export function factorOf(args: Arguments, name: string, entry: KernelEntry): number {
  const value = args[name];
  if (typeof value === "number") return value;
  const kind = entry.values[name];
  if (kind === "switch") return Number(value);
  if (kind !== undefined && kind !== "shape" && kind !== "strides") return numberArgument(args, name);
  const list = listArgument(args, name);
  if (kind === undefined) return list.length;
  let product = 1;
  for (let i = 0; i < list.length; i++) product *= at(list, i, "size");
  return product;
}

function isConstant(name: string): name is keyof typeof CONSTANTS {
  return name in CONSTANTS;
}

function sizesReader(dims: readonly Dim[], entry: KernelEntry): SizesReader {
  const readers = dims.map((dim) => sizeReader(dim, entry));
  return (args, sizes) => {
    for (let i = 0; i < readers.length; i++) readers[i]?.(args, sizes);
  };
}

function sizeReader(dim: Dim, entry: KernelEntry): SizesReader {
  const kind = typeof dim === "string" ? entry.values[dim] : undefined;
  if (typeof dim === "string" && (kind === "shape" || kind === "strides")) {
    return (args, sizes) => {
      const list = listArgument(args, dim);
      for (let i = 0; i < list.length; i++) sizes.add(at(list, i, "size"));
    };
  }
  const read = productReader([dim], entry);
  return (args, sizes) => sizes.add(read(args));
}
