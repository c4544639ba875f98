/**
 * The types that the checker derives from a binding table: argument types, arity, results, optional symbols. The functions here
 * are never called with wrong arguments; the checker refuses them, and `@ts-expect-error` fails the check where it does
 * not.
 *
 * @module
 */
import assert from "node:assert/strict";
import { it } from "node:test";
import type { FfiProvider, Handle, NativeAddress, Symbols } from "../../src/ffi/types.ts";

const TABLE = {
  allocate: { args: ["usize"], result: "address", check: "notNull" },
  release: { args: ["address"], result: "void", check: "none" },
  fill: { args: ["buffer", "i32", "usize"], result: "i32", check: "errnoResult" },
  wait: { args: ["address", "optionalBuffer"], result: "i64", check: { errno: ["EAGAIN"] } },
  describe: { args: ["i32"], result: "cstring", check: "none", optional: true },
  lookUp: { args: ["cstring"], result: "cstring", check: "none" },
  makeStream: { args: [{ out: "stream_t" }], result: "i32", check: "status" },
  waitEvent: { args: ["stream_t", "event_t"], result: "i32", check: { status: ["notReady"] }, since: "2.0" },
  launch: { args: [{ pointer: "config_t" }, { value: "id_t", byteLength: 32 }], result: "i32", check: "status" },
} as const;

const CONFIG = {
  name: "config_t",
  byteLength: 16,
  fields: { stream: { offset: 0, type: "stream_t" }, count: { offset: 8, type: "u64" } },
} as const;
const ID = { name: "id_t", byteLength: 32, fields: { bytes: { offset: 0, type: { bytes: 32 } } } } as const;

type Table = Symbols<typeof TABLE>;

/** Types only: compiled, and never run. */
export function compileTimeExpectations(symbols: Table): void {
  const address: NativeAddress = symbols.allocate(64);
  symbols.allocate(64n);
  symbols.release(address);
  const nothing: void = symbols.fill(new Uint8Array(4), 1, 4);
  const count: number = symbols.wait(address, null);
  const name: string | null = symbols.lookUp("x");
  void [nothing, count, name];

  // @ts-expect-error: too few arguments
  symbols.fill(new Uint8Array(4), 1);
  // @ts-expect-error: too many arguments
  symbols.release(address, 1);
  // @ts-expect-error: a number is no address
  symbols.release(4096);
  // @ts-expect-error: neither is a bigint
  symbols.release(4096n);
  // @ts-expect-error: an address is no number
  symbols.allocate(address);
  // @ts-expect-error: only an optional buffer may be null
  symbols.fill(null, 1, 4);
  // @ts-expect-error: a buffer is a view, which says where it begins, not an ArrayBuffer
  symbols.fill(new ArrayBuffer(4), 1, 4);
  // @ts-expect-error: a 32-bit integer is a number
  symbols.fill(new Uint8Array(4), 1n, 4);
  // @ts-expect-error: a checked status is no value
  const status: number = symbols.fill(new Uint8Array(4), 1, 4);
  // @ts-expect-error: an optional symbol may be undefined
  symbols.describe(1);
  // @ts-expect-error: a string result may be null
  const text: string = symbols.lookUp("x");
  // @ts-expect-error: the table has no such function
  symbols.nothing();
  void [status, text];
}

/** Types only: of handles, out-parameters and structs. */
export function compileTimeExpectationsOfPlaces(symbols: Table, provider: FfiProvider): void {
  const out = provider.out("stream_t");
  symbols.makeStream(out);
  const stream: Handle<"stream_t"> = out.value;
  const event: Handle<"event_t"> = provider.out("event_t").value;
  const state: number | undefined = symbols.waitEvent?.(stream, event);
  symbols.waitEvent?.(provider.nullAddress, provider.nullAddress);
  symbols.release(stream); // a handle is an address
  const config = provider.struct(CONFIG);
  config.set("stream", stream);
  config.set("count", 2n ** 40n);
  const count: number = config.get("count");
  const bytes: Uint8Array = provider.struct(ID).get("bytes");
  symbols.launch(config, provider.struct(ID));
  void [state, count, bytes];

  // @ts-expect-error: an event is no stream
  symbols.waitEvent?.(event, stream);
  // @ts-expect-error: not each address is a stream
  config.set("stream", symbols.allocate(8));
  // @ts-expect-error: nor is each out-parameter a stream's
  symbols.makeStream(provider.out("event_t"));
  // @ts-expect-error: a struct is not another one
  symbols.launch(provider.struct(ID), provider.struct(ID));
  // @ts-expect-error: a struct is not its bytes
  symbols.launch(config.bytes, provider.struct(ID));
  // @ts-expect-error: the struct has no such member
  config.get("length");
  // @ts-expect-error: a function that older releases lack may be undefined
  symbols.waitEvent(stream, event);
}

it("Symbols<T> is inferred from the table", () => {
  // The expectations above are the test; they are checked when this file is.
  assert.equal(typeof compileTimeExpectations, "function");
  assert.equal(typeof compileTimeExpectationsOfPlaces, "function");
});
