/**
 * Calls through the facade, with the C library as the one called: arguments, results, errors.
 *
 * @module
 */
import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { ArgumentError, InternalError, NativeError } from "../../src/errors.ts";
import type { LIBC_BINDINGS } from "../../src/ffi/bindings/libc.ts";
import { LIBC } from "../../src/ffi/bindings/libc.ts";
import { openLibrary, openProvider } from "../../src/ffi/mod.ts";
import type { FfiProvider, Library, NativeAddress } from "../../src/ffi/types.ts";

const PROBES = {
  strlen: { args: ["cstring"], result: "usize", check: "none" },
  strlenOfBuffer: { symbol: "strlen", args: ["buffer"], result: "usize", check: "none" },
  strchr: { args: ["cstring", "i32"], result: "cstring", check: "none" },
  abs: { args: ["i32"], result: "i32", check: "none" },
  labs: { args: ["i64"], result: "i64", check: "none" },
  ldexp: { args: ["f64", "i32"], result: "f64", check: "none" },
  strtof: { args: ["cstring", "optionalBuffer"], result: "f32", check: "none" },
  malloc: { args: ["usize"], result: "address", check: "notNull" },
  calloc: { args: ["usize", "usize"], result: "address", check: "notNull" },
  free: { args: ["address"], result: "void", check: "none" },
  memcmp: { args: ["buffer", "address", "usize"], result: "i32", check: "status" },
  snprintf: {
    args: ["buffer", "usize", "cstring", "i32", "i32", "i64", "cstring"],
    result: "i32",
    check: "none",
  },
  notThere: { args: ["i32"], result: "i32", check: "none", optional: true },
} as const;

let provider: FfiProvider;
let libc: Library<typeof LIBC_BINDINGS>;
let probes: Library<typeof PROBES>;
before(async () => {
  provider = await openProvider();
  libc = await openLibrary(LIBC, { provider });
  probes = provider.load("libc", "libc.so.6", PROBES, { statuses: { names: { 1: "greater" } } });
});
after(() => {
  probes.close();
  libc.close();
});

function bytesAt(address: NativeAddress, byteLength: number): Uint8Array {
  return new Uint8Array(provider.viewOf(address, byteLength));
}

describe("bindFunction()", () => {
  it("passes and returns each type", () => {
    const { symbols } = probes;
    assert.equal(symbols.strlen("zwölf"), 6);
    assert.equal(symbols.strlenOfBuffer(new TextEncoder().encode("xabc\0").subarray(1)), 3);
    assert.equal(symbols.strchr("a=b", 61), "=b");
    assert.equal(symbols.strchr("a=b", 33), null);
    assert.equal(symbols.abs(-7), 7);
    assert.ok(Object.is(symbols.abs(-0), 0));
    assert.equal(symbols.labs(-(2 ** 52)), 2 ** 52);
    assert.equal(symbols.labs(-(2n ** 40n)), 2 ** 40);
    assert.equal(symbols.ldexp(0.75, 3), 6);
    assert.equal(symbols.strtof("0.1", null), Math.fround(0.1));
  });

  it("passes more arguments than are written out", () => {
    const text = new Uint8Array(64);
    const length = probes.symbols.snprintf(text, text.byteLength, "%d|%d|%ld|%s", -1, 2, 2 ** 40, "end");
    assert.equal(new TextDecoder().decode(text.subarray(0, length)), "-1|2|1099511627776|end");
  });

  it("leaves an optional symbol that is not there undefined", () => {
    assert.equal(probes.symbols.notThere, undefined);
  });

  it("refuses arguments that the C type cannot hold", () => {
    const { abs, labs, strlen } = probes.symbols;
    for (const value of [1.5, NaN, 2 ** 31, -(2 ** 31) - 1]) assert.throws(() => abs(value), ArgumentError);
    for (const value of [0.5, 2 ** 53, 2n ** 63n]) assert.throws(() => labs(value), ArgumentError);
    assert.throws(() => strlen("a\0b"), ArgumentError);
    assert.throws(() => probes.symbols.malloc(-1), {
      message: "Cannot pass -1 as argument 1 of 'malloc' as its type is usize",
    });
  });

  it("refuses a 64-bit result that no JS number holds", () => {
    assert.throws(() => probes.symbols.labs(-(2n ** 60n)), InternalError);
  });

  it("throws for a null address where that is a failure", () => {
    assert.throws(() => probes.symbols.malloc(2n ** 62n), (error) => {
      assert.ok(error instanceof NativeError);
      assert.match(error.message, /^libc 'malloc' failed .*NULL returned: malloc\(4611686018427387904\)$/);
      return true;
    });
  });

  it("names a status by the library's table", () => {
    const block = probes.symbols.calloc(4, 1);
    assert.equal(probes.symbols.memcmp(new Uint8Array(4), block, 4), undefined);
    assert.throws(() => probes.symbols.memcmp(new Uint8Array([0, 0, 1, 0]), block, 4), (error) => {
      assert.ok(error instanceof NativeError);
      assert.equal(error.status, 1);
      assert.equal(error.code, "greater");
      assert.match(error.message, /: greater: memcmp\(<4 bytes>, 0x[0-9a-f]+, 4\)$/);
      return true;
    });
    probes.symbols.free(block);
  });

  it("throws errno with its name, text and the arguments", () => {
    assert.throws(() => libc.symbols.open("/nonexistent/file", 0, 0), (error) => {
      assert.ok(error instanceof NativeError);
      assert.deepEqual([error.library, error.call, error.status, error.code], ["libc", "open", 2, "ENOENT"]);
      assert.match(error.message, /ENOENT \(no such file or directory\): open\("\/nonexistent\/file", 0, 0\)$/);
      return true;
    });
    assert.throws(() => libc.symbols.mmap(provider.nullAddress, 4096, 3, 1, -1, 0), { code: "EBADF" });
    assert.throws(() => libc.symbols.posix_fallocate(-1, 0, 1), { code: "EBADF" });
    assert.throws(() => libc.symbols.read(-1, new Uint8Array(1), 1), { code: "EBADF" });
  });

  it("returns the negative errno where the binding lets it pass", () => {
    assert.equal(libc.symbols.tryOpen("/nonexistent/file", 0, 0), -2);
    assert.throws(() => libc.symbols.tryOpen("/etc/passwd/below", 0, 0), { code: "ENOTDIR" });
  });

  it("reads the right errno while memory is collected between calls", () => {
    const garbage: Uint8Array[] = [];
    for (let i = 0; i < 20_000; i++) {
      assert.equal(libc.symbols.tryOpen("/nonexistent", 0, 0), -2);
      if (i % 50 === 0) assert.throws(() => libc.symbols.close(-1), { code: "EBADF" });
      garbage.push(new Uint8Array(2000));
      if (garbage.length === 500) garbage.length = 0;
    }
  });
});

describe("FfiProvider", () => {
  it("addressOf() gives where the bytes lie, also of a part", () => {
    const memory = new WebAssembly.Memory({ initial: 2, maximum: 2 });
    const whole = provider.addressOf(memory.buffer);
    const part = provider.addressOf(new Uint8Array(memory.buffer, 65536, 8));
    assert.equal(provider.offset(whole, 65536), part);
    assert.equal(provider.offset(part, -65536), whole);
    libc.symbols.memset(part, 7, 8);
    assert.deepEqual([...new Uint8Array(memory.buffer, 65535, 3)], [0, 7, 7]);
  });

  it("addressOf() stays right for a small typed array whose buffer is asked for later", () => {
    const small = new Uint8Array([1, 2, 3, 4]);
    const address = provider.addressOf(small);
    assert.equal(small.buffer.byteLength, 4);
    libc.symbols.memset(address, 9, 2);
    assert.deepEqual([...small], [9, 9, 3, 4]);
  });

  it("viewOf() shows native memory without a copy", () => {
    const block = probes.symbols.calloc(16, 1);
    const view = bytesAt(block, 16);
    libc.symbols.memset(provider.offset(block, 4), 0x61, 3);
    assert.deepEqual([...view.subarray(3, 8)], [0, 0x61, 0x61, 0x61, 0]);
    view[0] = 0x62;
    assert.equal(bytesAt(block, 1)[0], 0x62);
    assert.equal(provider.readCString(provider.offset(block, 4)), "aaa");
    probes.symbols.free(block);
  });

  it("nullAddress is null, and others are not", () => {
    assert.notEqual(provider.addressOf(new Uint8Array(1)), provider.nullAddress);
    assert.match(provider.format(provider.nullAddress), /^0x0$/);
  });

  it("addressOf() refuses an empty view", () => {
    assert.throws(() => provider.addressOf(new Uint8Array(0)), InternalError);
  });

  it("load() closes what it opened and throws when a symbol is missing", () => {
    const table = { notThere: { args: [], result: "void", check: "none" } } as const;
    assert.throws(() => provider.load("libc", "libc.so.6", table), /notThere/);
  });
});
