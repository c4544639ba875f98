/**
 * The layout of a call's arguments for a kernel: the bytes of the struct that `source.ts` declares.
 *
 * @module
 */
import { at as elementAt } from "../../at.ts";
import { InternalError } from "../../errors.ts";
import type { DevicePtr } from "../device.ts";
import { checksOf } from "../kernels/arguments.ts";
import { functionsOf } from "../kernels/packing.ts";
import { type Arguments, type KernelEntry, MAX_DIMS, type ValueKind } from "../kernels/signature.ts";
import { dtypeParameters, MAX_LIST, SAMPLE, SHAPE_SLOTS, SLOT_BYTES } from "./source.ts";

/** Writes one argument of a call. */
type ArgumentWriter = (args: Arguments) => void;

/** The bytes of a kernel's arguments, and a function that checks and writes them for each call. */
export interface ArgumentBlock {
  readonly bytes: Uint8Array<ArrayBuffer>;
  readonly write: (args: Arguments) => void;
}

/** Memory that all kernels use besides their arguments. */
export interface SharedArguments {
  /** Address of the status record. */
  readonly status: DevicePtr;
  /**
   * Address of the first sample's number, which kernels add to the numbers of samples; and its present value, which the host
   * subtracts.
   */
  readonly firstSample: DevicePtr;
  readonly sampleBase: () => number;
}

/** Makes the arguments of a kernel. They are read when a call is enqueued, so one block serves all calls. */
export function argumentBlock(kernel: string, entry: KernelEntry, shared: SharedArguments): ArgumentBlock {
  const dtypes = dtypeParameters(entry);
  const values = Object.entries(entry.values).filter(([name]) => !dtypes.includes(name));
  const slots = [
    ...values.map(([name, kind]) =>
      name === SAMPLE ? 2 : kind === "shape" ? SHAPE_SLOTS : kind === "strides" ? SHAPE_SLOTS - 1 : 1
    ),
    ...Object.values(entry.arrays).map(({ list }) => list ? 1 + MAX_LIST : 1),
  ];
  const bytes = new Uint8Array(SLOT_BYTES * (slots.reduce((sum, count) => sum + count, 0) + (entry.faults ? 1 : 0)));
  const view = new DataView(bytes.buffer);
  const whole = (at: number, value: number): void => {
    view.setUint32(at, value >>> 0, true);
    view.setInt32(at + 4, Math.floor(value / 2 ** 32), true);
  };
  const missing = (name: string, value: unknown): never => {
    throw new InternalError(`'${kernel}' was called with ${String(value)} for '${name}'`);
  };
  const list = (at: number, name: string, most: number, hasCount: boolean): ArgumentWriter => (args) => {
    const given = args[name];
    if (typeof given !== "object" || "code" in given) return missing(name, given);
    if (given.length > most) throw new InternalError(`'${kernel}' takes at most ${most} ${name}, got ${given.length}`);
    if (hasCount) whole(at, given.length);
    let place = hasCount ? at + SLOT_BYTES : at;
    for (const value of given) {
      whole(place, value);
      place += SLOT_BYTES;
    }
  };
  const writers: ArgumentWriter[] = [];
  let at = 0;
  for (const [i, [name, kind]] of values.entries()) {
    const isList = kind === "shape" || kind === "strides";
    const place = at;
    if (name === SAMPLE) {
      whole(place + SLOT_BYTES, shared.firstSample);
      writers.push((args) => {
        const sample = args[name];
        if (typeof sample !== "number") return missing(name, sample);
        view.setFloat64(place, sample - shared.sampleBase(), true);
      });
    } else {writers.push(
        isList ? list(at, name, MAX_DIMS, kind === "shape") : valueWriter(view, at, name, kind, whole, missing),
      );}
    at += SLOT_BYTES * elementAt(slots, i, "slots of value");
  }
  for (const [i, [name, kind]] of Object.entries(entry.arrays).entries()) {
    const place = at;
    writers.push(
      kind.list ? list(at, name, MAX_LIST, true) : (args) => {
        const value = args[name];
        if (typeof value === "number") whole(place, value);
        else if (value === undefined && kind.optional) whole(place, 0);
        else missing(name, value);
      },
    );
    at += SLOT_BYTES * elementAt(slots, values.length + i, "slots of array");
  }
  if (entry.faults) whole(at, shared.status);
  const checks = checksOf(kernel, entry);
  const write = (args: Arguments): void => {
    for (const check of checks) check(args);
    for (const writer of writers) writer(args);
  };
  return { bytes, write };
}

function valueWriter(
  view: DataView,
  at: number,
  name: string,
  kind: ValueKind,
  whole: (at: number, value: number) => void,
  missing: (name: string, value: unknown) => never,
): ArgumentWriter {
  const names = functionsOf(kind);
  return (args) => {
    const value = args[name];
    if (typeof value === "boolean") whole(at, Number(value));
    else if (typeof value === "string") {
      const code = names.indexOf(value);
      if (code < 0) missing(name, value);
      whole(at, code);
    } else if (typeof value !== "number") missing(name, value);
    else if (kind === "f32") view.setFloat32(at, value, true);
    else if (kind === "f64") view.setFloat64(at, value, true);
    else whole(at, value);
  };
}
