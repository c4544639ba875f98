/**
 * The language in which C libraries are described: a {@link BindingTable} a library, written once and read by both
 * runtimes' providers, from which TypeScript infers the callable {@link Symbols}. Types only; nothing here runs.
 *
 * Invariant: an address is a {@link NativeAddress}, made and understood by one provider; no other code does
 * arithmetic on it or knows what it is made of.
 *
 * @module
 */

declare const nativeAddress: unique symbol;
declare const handleName: unique symbol;

/**
 * An address outside the garbage-collected heap. Opaque: compare with `===`, move with {@link FfiProvider.offset}.
 * Valid only in the process that made it, and as long as the memory is.
 */
export interface NativeAddress {
  readonly [nativeAddress]: true;
}

/** The C name of a type that is an opaque pointer, e.g. `cudaStream_t`. */
export type HandleType = `${string}_t`;

/** An address of the C type `N`; where another handle type is expected, it does not compile. */
export interface Handle<N extends string> extends NativeAddress {
  readonly [handleName]: N;
}

/** NULL, which is of every handle type. */
export type NullAddress = Handle<never>;

/** Type of a C number. */
export type ScalarType = "i32" | "u32" | "i64" | "u64" | "usize" | "f32" | "f64";

/** Type of a place in memory: a number, an address, a handle, or a number of bytes. */
export type PlaceType = ScalarType | "address" | HandleType | { readonly bytes: number };

/** One member of a C struct. */
export interface StructField {
  readonly offset: number;
  readonly type: PlaceType;
  /** Its value in a new struct; 0 where none is given. */
  readonly initial?: number;
}

/** The layout of a C struct's members. */
export interface StructLayout {
  /** Its C name. */
  readonly name: string;
  readonly byteLength: number;
  /** Members by name, as C writes it: `gridDim.x`. */
  readonly fields: Readonly<Record<string, StructField>>;
  /** The macro that gives the initial values. */
  readonly initializer?: string;
  /** Bytes of the struct by release, where releases append members; the last is `byteLength`. */
  readonly prefixes?: Readonly<Record<string, number>>;
}

/** A struct, or an array of them, with a name that tells it from others. */
export interface NamedStruct<N extends string> {
  /** The C name. */
  readonly name: N;
  /** The bytes that C reads and fills. */
  readonly bytes: Uint8Array;
}

/** One struct or an array of `count` of them, in memory that does not move. */
export interface Struct<L extends StructLayout> extends NamedStruct<L["name"]> {
  readonly layout: L;
  readonly count: number;
  /** A member of the struct, or of the one at `index`. */
  get<F extends keyof L["fields"]>(field: F, index?: number): ValueAt<L["fields"][F]["type"]>;
  /** Sets a member of the struct, or of the one at `index`. */
  set<F extends keyof L["fields"]>(field: F, value: ValueFor<L["fields"][F]["type"]>, index?: number): void;
}

/** A place that C fills: an out-parameter. */
export interface Out<T extends PlaceType> {
  readonly type: T;
  readonly bytes: Uint8Array;
  /** The value at that place. */
  readonly value: ValueAt<T>;
}

/** The type of a value read from a place of type `T`. 64-bit integers must be safe integers. */
export type ValueAt<T extends PlaceType> = T extends ScalarType ? number
  : T extends HandleType ? Handle<T>
  : T extends { readonly bytes: number } ? Uint8Array
  : NativeAddress;

/** The type of a value that may be written to a place of type `T`. */
export type ValueFor<T extends PlaceType> = T extends "i64" | "u64" | "usize" ? number | bigint : ValueAt<T>;

/**
 * Type of a C argument.
 *
 * - `i32`, `u32`, `f32`, `f64`: a JS number, refused when it is not a whole number in range (integers).
 * - `i64`, `u64`, `usize`: a JS number (a safe integer) or a bigint.
 * - `address`: a {@link NativeAddress}.
 * - `…_t`: a {@link Handle} of this type, or NULL.
 * - `buffer`: a typed array or DataView that C reads or fills during the call: in- and out-parameters.
 * - `optionalBuffer`: the same, or null for NULL.
 * - `cstring`: a JS string, passed as UTF-8 with a terminating NUL.
 * - `{ out }`: an {@link Out} of this type.
 * - `{ pointer }`: a {@link Struct} of this name, by its address.
 * - `{ value }`: a {@link Struct} of this name and size, by value.
 */
export type ArgumentType =
  | ScalarType
  | "address"
  | "buffer"
  | "optionalBuffer"
  | "cstring"
  | HandleType
  | { readonly out: PlaceType }
  | { readonly pointer: string }
  | { readonly value: string; readonly byteLength: number };

/**
 * Type of a C result. 64-bit integers come back as JS numbers and must be safe integers; `cstring` is copied out and
 * is null for NULL.
 */
export type ResultType = "void" | ScalarType | "address" | "cstring";

/** The TypeScript type of an argument of type `T`. */
export type ArgumentOf<T extends ArgumentType> = T extends PlaceType ? ValueFor<T>
  : T extends "buffer" ? ArrayBufferView
  : T extends "optionalBuffer" ? ArrayBufferView | null
  : T extends "cstring" ? string
  : T extends { readonly out: infer P extends PlaceType } ? Out<P>
  : T extends { readonly pointer: infer N extends string } ? NamedStruct<N>
  : T extends { readonly value: infer N extends string } ? NamedStruct<N>
  : never;

/** The TypeScript type of a result of type `T`. */
export type ResultOf<T extends ResultType> = T extends "void" ? void
  : T extends "address" ? NativeAddress
  : T extends "cstring" ? string | null
  : number;

/**
 * The rule that judges a call's status. Every binding has one, so no caller can forget to look: a failure throws a
 * `NativeError` with the status in words and the arguments.
 *
 * - `none`: the result is a value, or the call cannot fail.
 * - `errno`: -1 (for an address: `MAP_FAILED`) is a failure with the reason in errno.
 * - `{ errno: [...] }`: the same, but these errors are ordinary outcomes: the call returns the negative errno.
 * - `errnoResult`: the result is itself an errno; 0 is success. The call returns nothing.
 * - `status`: any status but 0 is a failure, named by the library's {@link StatusWords}. The call returns nothing.
 * - `{ status: [...] }`: the same, but these statuses are ordinary outcomes: the call returns the status.
 * - `notNull`: a null address is a failure.
 */
export type StatusCheck =
  | "none"
  | "errno"
  | { readonly errno: readonly string[] }
  | "errnoResult"
  | "status"
  | { readonly status: readonly string[] }
  | "notNull";

/** The words for a library's statuses other than 0. */
export interface StatusWords {
  /** Names by number, at least of the statuses that the table's checks name. */
  readonly names: Readonly<Record<number, string>>;
  /** The binding that gives a status' name. */
  readonly nameOf?: string;
  /** The binding that gives a status' text. */
  readonly textOf?: string;
  /** The binding that gives the last error's text; asked with NULL for the handle. */
  readonly lastError?: string;
  /** The binding that writes the last error's text to a place of this number of bytes. */
  readonly lastErrorInto?: string;
  /** The binding that writes a status' text to one place, and the text's length to a second one. */
  readonly textInto?: string;
}

/** One C function. */
export interface Binding {
  readonly args: readonly ArgumentType[];
  readonly result: ResultType;
  readonly check: StatusCheck;
  /** The exported symbol, where it is not the binding's name: several signatures of one variadic function. */
  readonly symbol?: string;
  /** The library may lack it; its entry in {@link Symbols} is then undefined. */
  readonly optional?: boolean;
  /** The first release that has it, where older ones serve too; it is optional then. */
  readonly since?: string;
}

/** The functions of one C library. Declare it `as const`; `LibrarySpec` checks it. */
export type BindingTable = Readonly<Record<string, Binding>>;

/** Arguments of a function with argument types `A`. */
export type ArgumentsOf<A extends readonly ArgumentType[]> = { -readonly [I in keyof A]: ArgumentOf<A[I]> };

/** The result of a binding's checked call. */
export type CheckedResultOf<B extends Binding> = B["check"] extends "errnoResult" | "status" ? void
  : ResultOf<B["result"]>;

/** The callable form of a binding. */
export type BoundFunction<B extends Binding> = (...args: ArgumentsOf<B["args"]>) => CheckedResultOf<B>;

/** The callable form of a table. */
export type Symbols<T extends BindingTable> = {
  readonly [N in keyof T]: T[N] extends { readonly optional: true } | { readonly since: string }
    ? BoundFunction<T[N]> | undefined
    : BoundFunction<T[N]>;
};

/** An opened library. */
export interface Library<T extends BindingTable> {
  /** Its name in messages, e.g. `NCCL`. */
  readonly name: string;
  /** The file that was loaded, or the bare soname that the dynamic linker resolved. */
  readonly path: string;
  /** Its functions. */
  readonly symbols: Symbols<T>;
  /**
   * A function that is optional, or that older releases lack.
   *
   * @throws {UnsupportedError} if the library lacks it, saying which release has it
   */
  need<N extends keyof T & string>(name: N): BoundFunction<T[N]>;
  /** The provider that loaded it, whose addresses its functions take. */
  readonly provider: FfiProvider;
  /** Unloads it; its functions must not be called after that. */
  close(): void;
}

/** Details of a library for messages. */
export interface LoadOptions {
  /** Its statuses in words. */
  readonly statuses?: StatusWords;
  /** The oldest release that has every function that is not optional. */
  readonly oldest?: string;
  /** The way to install it, as a sentence. */
  readonly remedy?: string;
}

/** One runtime's foreign-function interface. */
export interface FfiProvider {
  /** The runtime. */
  readonly runtime: "bun" | "deno";
  /** NULL. */
  readonly nullAddress: NullAddress;
  /**
   * The address of a view's (or buffer's) first byte. It stays valid while the buffer is reachable; a WebAssembly.Memory
   * that never grows keeps its address for good.
   */
  addressOf(view: ArrayBufferView | ArrayBufferLike): NativeAddress;
  /** The address as a number, exactly: no process has addresses beyond 2^53. {@link offset} of null is its inverse. */
  numberOf(address: NativeAddress): number;
  /** The address `bytes` further on (or back, when negative). */
  offset(address: NativeAddress, bytes: number): NativeAddress;
  /**
   * The native memory as an ArrayBuffer, not copied and not owned: it must not be used after the memory is unmapped.
   */
  viewOf(address: NativeAddress, byteLength: number): ArrayBuffer;
  /** Copies the NUL-terminated UTF-8 string at an address. */
  readCString(address: NativeAddress): string;
  /** The address as hexadecimal text, for messages. */
  format(address: NativeAddress): string;
  /** Makes a place for an out-parameter, filled with zeros. */
  out<T extends PlaceType>(type: T): Out<T>;
  /** Makes a struct, or an array of them, holding the layout's initial values. */
  struct<L extends StructLayout>(layout: L, count?: number): Struct<L>;
  /**
   * Loads one file and binds a table to it.
   *
   * @param name what the library is called in messages
   * @param path absolute path or bare soname
   * @param bindings its functions
   * @param options its statuses, and what to say of a release that is too old
   * @throws {UnsupportedError} naming each function that is not optional and that the file lacks
   * @throws {Error} the runtime's own error, when the file cannot be loaded
   */
  load<T extends BindingTable>(name: string, path: string, bindings: T, options?: LoadOptions): Library<T>;
}
