/**
 * What a call of a kernel reads and writes, and how much it calculates, from its entry and its arguments alone: for checks, and
 * for devices that compute nothing.
 *
 * @module
 */
import { type DType, DTYPES, uint8 } from "../../dtype.ts";
import { numelOf } from "../../shape.ts";
import { type DevicePtr, devicePtr } from "../device.ts";
import { dtypeArgument, listArgument, numberArgument } from "./arguments.ts";
import { type Arguments, type ArrayKind, CONSTANTS, type Dim, type KernelEntry } from "./signature.ts";

/** Memory that a call may touch. */
export interface Access {
  /** The parameter's name. */
  readonly parameter: string;
  readonly direction: "reads" | "writes" | "updates";
  readonly dtype: DType;
  readonly address: DevicePtr;
  /** Bytes from the first to the last one touched, gaps between strided rows included; 0 if there is nothing. */
  readonly byteLength: number;
  /** Bytes that are moved: of each element once. */
  readonly movedBytes: number;
}

/**
 * Every address of a call that was given, with its length.
 *
 * @param status where the device keeps its status record
 */
export function accessesOf(entry: KernelEntry, args: Arguments, status: DevicePtr): Access[] {
  const accesses: Access[] = [];
  for (const [parameter, kind] of Object.entries(entry.arrays)) {
    if (kind.optional && args[parameter] === undefined) continue;
    const { elements, span } = extentOf(kind, entry, args);
    const { direction, dtype } = useOf(kind, entry, args);
    const [byteLength, movedBytes] = [span * dtype.byteLength, elements * dtype.byteLength];
    for (const at of kind.list ? listArgument(args, parameter) : [numberArgument(args, parameter)]) {
      accesses.push({ parameter, direction, dtype, address: devicePtr(at), byteLength, movedBytes });
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
  return entry.flops === undefined ? 0 : numelOf(dimsOf(entry.flops, entry, args));
}

function useOf(kind: ArrayKind, entry: KernelEntry, args: Arguments): Pick<Access, "direction" | "dtype"> {
  if ("reads" in kind) return { direction: "reads", dtype: dtypeOf(kind.reads, args) };
  if ("updates" in kind) return { direction: "updates", dtype: dtypeOf(kind.updates, args) };
  const reads = kind.updatesIf !== undefined && productOf([kind.updatesIf], entry, args) !== 0;
  return { direction: reads ? "updates" : "writes", dtype: dtypeOf(kind.writes, args) };
}

const BY_NAME: ReadonlyMap<string, DType> = new Map(DTYPES.map((dtype) => [dtype.name, dtype]));

/** The dtype of that name, or what the parameter of that name is. */
function dtypeOf(name: string, args: Arguments): DType {
  return BY_NAME.get(name) ?? dtypeArgument(args, name);
}

/** How many elements there are, and how many places from the first to the last. */
function extentOf(
  kind: ArrayKind,
  entry: KernelEntry,
  args: Arguments,
): { readonly elements: number; readonly span: number } {
  const shape = dimsOf(kind.shape, entry, args);
  const strides = dimsOf(kind.strides ?? [], entry, args);
  if (kind.transposed !== undefined && productOf([kind.transposed], entry, args) !== 0) {
    shape.push(...shape.splice(-2).reverse());
  }
  const elements = numelOf(shape);
  if (elements === 0) return { elements, span: 0 };
  let span = numelOf(shape.slice(strides.length));
  for (const [dim, stride] of strides.entries()) span += stride * (numelOf(shape.slice(dim, dim + 1)) - 1);
  return { elements, span };
}

function productOf(dims: readonly Dim[], entry: KernelEntry, args: Arguments): number {
  return numelOf(dimsOf(dims, entry, args));
}

function isConstant(name: string): name is keyof typeof CONSTANTS {
  return name in CONSTANTS;
}

function dimsOf(dims: readonly Dim[], entry: KernelEntry, args: Arguments): number[] {
  const sizes: number[] = [];
  for (const dim of dims) {
    if (typeof dim === "number") sizes.push(dim);
    else if (typeof dim === "object") sizes.push(productOf(dim, entry, args));
    else if (isConstant(dim)) sizes.push(CONSTANTS[dim]);
    else {
      const kind = entry.values[dim];
      if (kind === "shape" || kind === "strides") sizes.push(...listArgument(args, dim));
      else if (kind === "switch") sizes.push(Number(args[dim]));
      else sizes.push(kind === undefined ? listArgument(args, dim).length : numberArgument(args, dim));
    }
  }
  return sizes;
}
