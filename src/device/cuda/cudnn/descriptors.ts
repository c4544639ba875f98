/**
 * Descriptors of cuDNN: each is made with its attributes, finalized, and kept until all are freed together.
 *
 * @module
 */
import { CUDNN_CONSTANTS } from "../../../ffi/bindings/cudnn.ts";
import type { Handle, NativeAddress } from "../../../ffi/types.ts";
import type { Cudnn } from "./version.ts";

type Constants = typeof CUDNN_CONSTANTS;
export type AttributeName = keyof Constants & `CUDNN_ATTR_${string}`;
export type DescriptorKind = keyof Constants & `CUDNN_BACKEND_${string}`;

export type AttributeValue =
  | { readonly integers: readonly number[] }
  | { readonly flag: boolean }
  | { readonly dataType: keyof Constants & `CUDNN_DATA_${string}` }
  | { readonly mode: keyof Constants & `CUDNN_HEUR_MODE_${string}` }
  | { readonly comparison: keyof Constants & `CUDNN_POINTWISE_${string}` }
  | { readonly descriptors: readonly NativeAddress[] }
  | { readonly handle: Handle<"cudnnHandle_t"> }
  | { readonly addresses: readonly number[] }
  | { readonly text: string };

/** Attributes of a descriptor, which are set in this order. */
export type Attributes = readonly (readonly [name: AttributeName, value: AttributeValue])[];

export class Descriptors implements Disposable {
  readonly cudnn: Cudnn;
  readonly #made: NativeAddress[] = [];

  constructor(cudnn: Cudnn) {
    this.cudnn = cudnn;
  }

  /**
   * Makes a descriptor and keeps it.
   *
   * @throws {NativeError} if cuDNN refuses it
   */
  make(kind: DescriptorKind, attributes: Attributes): NativeAddress {
    const descriptor = this.#open(kind);
    this.#made.push(descriptor);
    this.#finalize(descriptor, attributes);
    return descriptor;
  }

  /** Makes a descriptor that is freed after `use`. */
  lend(kind: DescriptorKind, attributes: Attributes, use: (descriptor: NativeAddress) => void): void {
    const descriptor = this.#open(kind);
    try {
      this.#finalize(descriptor, attributes);
      use(descriptor);
    } finally {
      this.cudnn.symbols.cudnnBackendDestroyDescriptor(descriptor);
    }
  }

  integerOf(descriptor: NativeAddress, name: AttributeName): number {
    const value = new BigInt64Array(1);
    this.#read(descriptor, name, CUDNN_CONSTANTS.CUDNN_TYPE_INT64, 1, value);
    return Number(value[0]);
  }

  notesOf(descriptor: NativeAddress, name: AttributeName): readonly number[] {
    const { CUDNN_NUMERICAL_NOTE_TYPE_COUNT: most, CUDNN_TYPE_NUMERICAL_NOTE } = CUDNN_CONSTANTS;
    const notes = new Int32Array(most);
    return [...notes.subarray(0, this.#read(descriptor, name, CUDNN_TYPE_NUMERICAL_NOTE, most, notes))];
  }

  /** Descriptors that are attributes of a descriptor; they are kept. */
  descriptorsOf(descriptor: NativeAddress, name: AttributeName, kind: DescriptorKind): readonly NativeAddress[] {
    const { CUDNN_TYPE_BACKEND_DESCRIPTOR: type } = CUDNN_CONSTANTS;
    const most = this.#read(descriptor, name, type, 0, null);
    // cuDNN fills in descriptors that it is given.
    const places = Array.from({ length: most }, () => this.#open(kind));
    this.#made.push(...places);
    if (most === 0) return places;
    return places.slice(0, this.#read(descriptor, name, type, most, this.#words(places)));
  }

  [Symbol.dispose](): void {
    for (const descriptor of this.#made.splice(0).reverse()) {
      this.cudnn.symbols.cudnnBackendDestroyDescriptor(descriptor);
    }
  }

  #open(kind: DescriptorKind): NativeAddress {
    const { symbols, provider } = this.cudnn;
    const place = provider.out("address");
    symbols.cudnnBackendCreateDescriptor(CUDNN_CONSTANTS[kind], place);
    return place.value;
  }

  #finalize(descriptor: NativeAddress, attributes: Attributes): void {
    const { symbols } = this.cudnn;
    for (const [name, value] of attributes) {
      const { type, count, elements } = this.#elementsOf(value);
      symbols.cudnnBackendSetAttribute(descriptor, CUDNN_CONSTANTS[name], type, count, elements);
    }
    symbols.cudnnBackendFinalize(descriptor);
  }

  #read(
    descriptor: NativeAddress,
    name: AttributeName,
    type: number,
    most: number,
    elements: ArrayBufferView | null,
  ): number {
    const { symbols, provider } = this.cudnn;
    const count = provider.out("i64");
    symbols.cudnnBackendGetAttribute(descriptor, CUDNN_CONSTANTS[name], type, most, count, elements);
    return count.value;
  }

  #elementsOf(value: AttributeValue): { type: number; count: number; elements: ArrayBufferView } {
    const of = (type: keyof Constants & `CUDNN_TYPE_${string}`, count: number, elements: ArrayBufferView) => {
      return { type: CUDNN_CONSTANTS[type], count, elements };
    };
    const enumOf = (type: Parameters<typeof of>[0], name: keyof Constants) =>
      of(type, 1, Int32Array.of(CUDNN_CONSTANTS[name]));
    if ("integers" in value) {
      return of("CUDNN_TYPE_INT64", value.integers.length, BigInt64Array.from(value.integers, BigInt));
    }
    if ("flag" in value) return of("CUDNN_TYPE_BOOLEAN", 1, Uint8Array.of(Number(value.flag)));
    if ("dataType" in value) return enumOf("CUDNN_TYPE_DATA_TYPE", value.dataType);
    if ("mode" in value) return enumOf("CUDNN_TYPE_HEUR_MODE", value.mode);
    if ("comparison" in value) return enumOf("CUDNN_TYPE_POINTWISE_MODE", value.comparison);
    if ("descriptors" in value) {
      return of("CUDNN_TYPE_BACKEND_DESCRIPTOR", value.descriptors.length, this.#words(value.descriptors));
    }
    if ("handle" in value) return of("CUDNN_TYPE_HANDLE", 1, this.#words([value.handle]));
    if ("addresses" in value) {
      return of("CUDNN_TYPE_VOID_PTR", value.addresses.length, BigUint64Array.from(value.addresses, BigInt));
    }
    const text = new TextEncoder().encode(`${value.text}\0`);
    return of("CUDNN_TYPE_CHAR", text.length, text);
  }

  #words(addresses: readonly NativeAddress[]): BigUint64Array {
    return BigUint64Array.from(addresses, (address) => BigInt(this.cudnn.provider.numberOf(address)));
  }
}
