/**
 * Operations and bytes of kernels' calls by the table of kernels, for any device.
 *
 * @module
 */
import { at } from "../../at.ts";
import { dtypeName, factorOf, factorsOf, fixedDType } from "./accesses.ts";
import { dtypeArgument } from "./arguments.ts";
import { type Arguments, CONSTANTS, type Dim, type KernelEntry } from "./signature.ts";
import { type Kernels, makeKernels, type OfCalls } from "./table.ts";

/** Operations and bytes of a call. */
export interface KernelWork {
  /** Floating-point operations, as entries count them. */
  readonly flops: number;
  /** Bytes read and written, each element once; updated elements count twice. */
  readonly bytes: number;
}

/** The work of each kernel's calls, in an object that the next call of the kernel changes. */
export function workOfCalls(): OfCalls<KernelWork> {
  return makeKernels((_name, entry) => workReader(entry));
}

/** Kernels that compute nothing, and hand the work of each call to `take`. */
export function countingKernels(take: (work: KernelWork) => void): Kernels {
  return makeKernels((_name, entry) => {
    const read = workReader(entry);
    return (args) => take({ ...read(args) });
  });
}

/** Makes a function that counts the work of calls. A trace counts every call, so it reads each argument once and makes no objects. */
function workReader(entry: KernelEntry): (args: Arguments) => KernelWork {
  const factors = new Factors(entry);
  const flops = factors.product(entry.flops ?? [0]);
  const status = entry.faults ? 2 * CONSTANTS.STATUS_BYTES : 0;
  const arrays = Object.entries(entry.arrays).map(([name, kind]) => {
    const dtype = fixedDType(kind);
    const elements = kind.list ? [...kind.shape, name] : kind.shape;
    const bytes = dtype === undefined ? elements : [...elements, dtype.byteLength];
    return {
      moved: factors.product("updates" in kind ? [...bytes, 2] : bytes),
      dtype: dtype === undefined ? dtypeName(kind) : undefined,
      optional: kind.optional ? name : undefined,
      updatesIf: "writes" in kind && kind.updatesIf !== undefined ? factors.product([kind.updatesIf]) : undefined,
    };
  });
  const work = { flops: 0, bytes: 0 };
  return (args) => {
    factors.read(args);
    work.flops = factors.multiply(flops);
    work.bytes = status;
    for (let i = 0; i < arrays.length; i++) {
      const array = arrays[i];
      if (array === undefined) break;
      const { moved, dtype, optional, updatesIf } = array;
      if (optional !== undefined && args[optional] === undefined) continue;
      const times = updatesIf === undefined || factors.multiply(updatesIf) === 0 ? 1 : 2;
      work.bytes += times * factors.multiply(moved) * (dtype === undefined ? 1 : dtypeArgument(args, dtype).byteLength);
    }
    return work;
  };
}

/** A product: a number, and the places of its other factors. */
interface Product {
  readonly constant: number;
  readonly places: readonly number[];
}

/** The factors of a kernel's products, read from the arguments of its calls. */
class Factors {
  readonly #entry: KernelEntry;
  readonly #names: string[] = [];
  readonly #values: number[] = [];

  constructor(entry: KernelEntry) {
    this.#entry = entry;
  }

  product(dims: readonly Dim[]): Product {
    const { constant, names } = factorsOf(dims);
    return { constant, places: names.map((name) => this.#placeOf(name)) };
  }

  /** Reads the factors of a call. */
  read(args: Arguments): void {
    for (let i = 0; i < this.#names.length; i++) {
      const name = this.#names[i];
      if (name === undefined) break;
      this.#values[i] = factorOf(args, name, this.#entry);
    }
  }

  /** A product of the call that was read last. */
  multiply({ constant, places }: Product): number {
    let product = constant;
    for (let i = 0; i < places.length; i++) product *= at(this.#values, at(places, i, "place"), "factor");
    return product;
  }

  #placeOf(name: string): number {
    const place = this.#names.indexOf(name);
    return place < 0 ? this.#names.push(name) - 1 : place;
  }
}
