/**
 * What the type checker makes of a binding table: argument types, arity, results, optional symbols. The functions here
 * are never called with wrong arguments; the checker refuses them, and `@ts-expect-error` fails the check where it does
 * not.
 *
 * @module
 */
import assert from "node:assert/strict";
import { it } from "node:test";
import type { NativeAddress, Symbols } from "../../ffi/types.ts";

const TABLE = {
  allocate: { args: ["usize"], result: "address", check: "notNull" },
  release: { args: ["address"], result: "void", check: "none" },
  fill: { args: ["buffer", "i32", "usize"], result: "i32", check: "errnoResult" },
  wait: { args: ["address", "optionalBuffer"], result: "i64", check: { errno: ["EAGAIN"] } },
  describe: { args: ["i32"], result: "cstring", check: "none", optional: true },
  lookUp: { args: ["cstring"], result: "cstring", check: "none" },
} as const;

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

it("Symbols<T> is inferred from the table", () => {
  // The expectations above are the test; they are checked when this file is.
  assert.equal(typeof compileTimeExpectations, "function");
});
