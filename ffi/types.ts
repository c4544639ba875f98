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

/**
 * An address outside the garbage-collected heap. Opaque: compare with `===`, move with {@link FfiProvider.offset}.
 * Valid only in the process that made it, and as long as the memory is.
 */
export interface NativeAddress {
  readonly [nativeAddress]: true;
}

/**
 * Type of a C argument.
 *
 * - `i32`, `u32`, `f32`, `f64`: a JS number, refused when it is not a whole number in range (integers).
 * - `i64`, `u64`, `usize`: a JS number (a safe integer) or a bigint.
 * - `address`: a {@link NativeAddress}.
 * - `buffer`: a typed array or DataView that C reads or fills during the call: in- and out-parameters.
 * - `optionalBuffer`: the same, or null for NULL.
 * - `cstring`: a JS string, passed as UTF-8 with a terminating NUL.
 */
export type ArgumentType =
  | "i32"
  | "u32"
  | "i64"
  | "u64"
  | "usize"
  | "f32"
  | "f64"
  | "address"
  | "buffer"
  | "optionalBuffer"
  | "cstring";

/**
 * Type of a C result. 64-bit integers come back as JS numbers and must be safe integers; `cstring` is copied out and
 * is null for NULL.
 */
export type ResultType = "void" | "i32" | "u32" | "i64" | "u64" | "usize" | "f32" | "f64" | "address" | "cstring";

/** What an argument of type `T` is in TypeScript. */
export type ArgumentOf<T extends ArgumentType> = T extends "i64" | "u64" | "usize" ? number | bigint
  : T extends "address" ? NativeAddress
  : T extends "buffer" ? ArrayBufferView
  : T extends "optionalBuffer" ? ArrayBufferView | null
  : T extends "cstring" ? string
  : number;

/** What a result of type `T` is in TypeScript. */
export type ResultOf<T extends ResultType> = T extends "void" ? void
  : T extends "address" ? NativeAddress
  : T extends "cstring" ? string | null
  : number;

/**
 * How a call's status is judged. Every binding says it, so no caller can forget to look: a failure throws a
 * `NativeError` with the status in words and the arguments.
 *
 * - `none`: the result is a value, or the call cannot fail.
 * - `errno`: -1 (for an address: `MAP_FAILED`) is a failure, told by errno.
 * - `{ errno: [...] }`: the same, but these errors are ordinary outcomes: the call returns the negative errno.
 * - `errnoResult`: the result is itself an errno; 0 is success. The call returns nothing.
 * - `status`: any status but 0 is a failure, named by the library's table of statuses. The call returns nothing.
 * - `notNull`: a null address is a failure.
 */
export type StatusCheck =
  | "none"
  | "errno"
  | { readonly errno: readonly string[] }
  | "errnoResult"
  | "status"
  | "notNull";

/** Names of a library's status codes other than 0. */
export type StatusNames = Readonly<Record<number, string>>;

/** One C function. */
export interface Binding {
  readonly args: readonly ArgumentType[];
  readonly result: ResultType;
  readonly check: StatusCheck;
  /** The exported symbol, where it is not the binding's name: several signatures of one variadic function. */
  readonly symbol?: string;
  /** The library may lack it; its entry in {@link Symbols} is then undefined. */
  readonly optional?: boolean;
}

/** The functions of one C library. Declare it `as const`; `LibrarySpec` checks it. */
export type BindingTable = Readonly<Record<string, Binding>>;

/** Arguments of a function with argument types `A`. */
export type ArgumentsOf<A extends readonly ArgumentType[]> = { -readonly [I in keyof A]: ArgumentOf<A[I]> };

/** What the checked call of a binding returns. */
export type CheckedResultOf<B extends Binding> = B["check"] extends "errnoResult" | "status" ? void
  : ResultOf<B["result"]>;

/** The callable form of a binding. */
export type BoundFunction<B extends Binding> = (...args: ArgumentsOf<B["args"]>) => CheckedResultOf<B>;

/** The callable form of a table. */
export type Symbols<T extends BindingTable> = {
  readonly [N in keyof T]: T[N] extends { readonly optional: true } ? BoundFunction<T[N]> | undefined
    : BoundFunction<T[N]>;
};

/** An opened library. */
export interface Library<T extends BindingTable> {
  /** What it is called in messages, e.g. `oneDNN`. */
  readonly name: string;
  /** The file that was loaded, or the bare soname that the dynamic linker resolved. */
  readonly path: string;
  /** Its functions. */
  readonly symbols: Symbols<T>;
  /** The provider that loaded it, whose addresses its functions take. */
  readonly provider: FfiProvider;
  /** Unloads it; its functions must not be called after that. */
  close(): void;
}

/** One runtime's foreign-function interface. */
export interface FfiProvider {
  /** The runtime. */
  readonly runtime: "bun" | "deno";
  /** NULL. */
  readonly nullAddress: NativeAddress;
  /**
   * Where a view's (or buffer's) first byte lies. It stays valid while the buffer is reachable; a WebAssembly.Memory
   * that never grows keeps its address for good.
   */
  addressOf(view: ArrayBufferView | ArrayBufferLike): NativeAddress;
  /** The address as a number, exactly: no process has addresses beyond 2^53. What {@link offset} makes of null is its inverse. */
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
  /**
   * Loads one file and binds a table to it.
   *
   * @param name what the library is called in messages
   * @param path absolute path or bare soname
   * @param bindings its functions
   * @param statuses names of its status codes
   * @throws {Error} the runtime's own error, when the file cannot be loaded or lacks a symbol that is not optional
   */
  load<T extends BindingTable>(name: string, path: string, bindings: T, statuses?: StatusNames): Library<T>;
}
