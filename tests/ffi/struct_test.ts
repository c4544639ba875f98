/**
 * Out-parameters, structs, handles and statuses through the facade, with a C twin as the one called: what C sees of a
 * struct by address and by value, and of a launch.
 *
 * @module
 */
import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { ArgumentError, InternalError, LibraryNotFoundError, NativeError, UnsupportedError } from "../../src/errors.ts";
import { CUBLASLT_BINDINGS, CUBLASLT_MATMUL_HEURISTIC_RESULT } from "../../src/ffi/bindings/cublaslt.ts";
import { CUDA_LAUNCH_ATTRIBUTE, CUDA_LAUNCH_CONFIG, CUDART_BINDINGS } from "../../src/ffi/bindings/cudart.ts";
import { NCCL, NCCL_BINDINGS, NCCL_CONFIG, NCCL_UNIQUE_ID } from "../../src/ffi/bindings/nccl.ts";
import { openLibrary, openProvider } from "../../src/ffi/mod.ts";
import type { FfiProvider, Library, NativeAddress, Struct } from "../../src/ffi/types.ts";
import { buildTwin } from "../native/build.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";

const {
  ncclCommInitRank,
  ncclCommInitRankConfig,
  ncclCommInitRankScalable,
  ncclCommGetAsyncError,
  ncclGroupEnd,
  ncclGetErrorString,
  ncclGetLastError,
  ncclCommWindowDeregister,
} = NCCL_BINDINGS;
const { cudaLaunchKernelExC } = CUDART_BINDINGS;
const { cublasLtMatmul } = CUBLASLT_BINDINGS;

/** The tables' own bindings, as far as the twin has them; the last it lacks. */
const TWIN = {
  ncclCommInitRank,
  ncclCommInitRankConfig,
  ncclCommInitRankScalable,
  ncclCommGetAsyncError,
  ncclGroupEnd,
  ncclGetErrorString,
  ncclGetLastError,
  cudaLaunchKernelExC,
  cublasLtMatmul,
  ncclCommWindowDeregister,
};

const POINTERS = { name: "void *", byteLength: 8, fields: { at: { offset: 0, type: "address" } } } as const;

let directory: TemporaryDirectory;
let provider: FfiProvider;
let twin: Library<typeof TWIN>;

before(async () => {
  provider = await openProvider();
  directory = temporaryDirectory();
  const { statuses = { names: {} }, remedy } = NCCL;
  twin = provider.load("twin", buildTwin("nccl_twin.c", directory), TWIN, { statuses, remedy });
});
after(() => {
  twin.close();
  directory[Symbol.dispose]();
});

function uniqueId(): Struct<typeof NCCL_UNIQUE_ID> {
  const id = provider.struct(NCCL_UNIQUE_ID);
  id.set("internal", Uint8Array.from({ length: 128 }, (_, index) => (index * 37 + 201) % 256));
  return id;
}

function config(): Struct<typeof NCCL_CONFIG> {
  const made = provider.struct(NCCL_CONFIG);
  made.set("size", NCCL_CONFIG.prefixes["2.23.4"]);
  made.set("version", 22304);
  made.set("blocking", 0);
  return made;
}

describe("FfiProvider.struct()", () => {
  it("lays members out by the table, and begins with its initial values", () => {
    const made = provider.struct(NCCL_CONFIG);
    const view = new DataView(made.bytes.buffer);
    assert.equal(made.bytes.byteLength, 80);
    assert.equal(view.getBigUint64(0, true), 80n);
    assert.equal(view.getUint32(8, true), 0xcafebeef);
    assert.equal(view.getInt32(40, true), -(2 ** 31));
    assert.equal(view.getBigUint64(48, true), 0n);
    assert.equal(made.get("netName"), provider.nullAddress);
    made.set("splitShare", 1);
    assert.equal(view.getInt32(40, true), 1);
    assert.equal(made.get("splitShare"), 1);
  });

  it("holds each type of member, in an array too", () => {
    const layout = {
      name: "all",
      byteLength: 56,
      fields: {
        i64: { offset: 0, type: "i64", initial: -5 },
        u64: { offset: 8, type: "u64" },
        f64: { offset: 16, type: "f64" },
        f32: { offset: 24, type: "f32" },
        u32: { offset: 28, type: "u32" },
        stream: { offset: 32, type: "cudaStream_t" },
        bytes: { offset: 40, type: { bytes: 16 } },
      },
    } as const;
    const made = provider.struct(layout, 3);
    const place = provider.addressOf(made.bytes);
    made.set("u64", 2n ** 53n - 1n, 2);
    made.set("f64", 0.1, 2);
    made.set("f32", 0.5, 2);
    made.set("u32", 2 ** 32 - 1, 2);
    made.set("bytes", new Uint8Array(16).fill(7), 2);
    made.set("stream", provider.nullAddress, 2);
    assert.deepEqual([made.get("i64"), made.get("i64", 1), made.get("i64", 2)], [-5, -5, -5]);
    assert.deepEqual([made.get("u64", 2), made.get("f64", 2), made.get("f32", 2)], [2 ** 53 - 1, 0.1, 0.5]);
    assert.deepEqual([made.get("u32", 2), made.get("u32", 1), made.get("bytes", 2)[15]], [2 ** 32 - 1, 0, 7]);
    assert.equal(made.get("stream", 2), provider.nullAddress);
    assert.equal(provider.addressOf(made.bytes), place);

    made.set("u64", 2n ** 53n);
    assert.throws(() => made.get("u64"), InternalError);
    assert.throws(() => made.set("u32", -1), InternalError);
    assert.throws(() => made.set("u32", 1, 3), InternalError);
    assert.throws(() => made.set("bytes", new Uint8Array(15)), InternalError);
  });

  it("holds addresses", () => {
    const bytes = new Uint8Array(new ArrayBuffer(64));
    const places: NativeAddress[] = [0, 1, 63].map((at) => provider.offset(provider.addressOf(bytes), at));
    const pointers = provider.struct(POINTERS, places.length);
    places.forEach((place, index) => pointers.set("at", place, index));
    assert.deepEqual(places.map((_, index) => pointers.get("at", index)), places);
    const words = new BigUint64Array(pointers.bytes.buffer);
    assert.equal(provider.format(pointers.get("at", 2)), `0x${words[2]?.toString(16)}`);
  });
});

describe("a struct by value", () => {
  it("is what it is by address: ncclCommInitRank beside ncclCommInitRankScalable", () => {
    const [byValue, byAddress] = [provider.out("ncclComm_t"), provider.out("ncclComm_t")];
    const id = uniqueId();
    const before = id.bytes.slice();
    const [first, rank] = [provider.struct(NCCL_UNIQUE_ID, 2), 3];
    first.set("internal", id.get("internal"), 1);
    const none = config();
    none.set("size", 0);

    twin.symbols.ncclCommInitRank(byValue, 8, id, rank);
    assert.deepEqual(id.bytes, before, "what the callee does with its copy is not seen");
    const plain = byValue.value;
    assert.notEqual(plain, provider.nullAddress);
    twin.symbols.ncclCommInitRank(byValue, 8, id, 4);
    assert.notEqual(byValue.value, plain, "the argument after the struct arrives");
    twin.symbols.ncclCommInitRank(byValue, 9, id, rank);
    assert.notEqual(byValue.value, plain, "so does the one before");
    id.bytes[127] = 0;
    twin.symbols.ncclCommInitRank(byValue, 8, id, rank);
    assert.notEqual(byValue.value, plain, "so does its last byte");
    id.bytes.set(before);

    const settings = config();
    assert.equal(twin.symbols.ncclCommInitRankConfig(byValue, 8, id, rank, settings), 0);
    assert.equal(twin.need("ncclCommInitRankScalable")(byAddress, 8, rank, 2, first, settings), 0);
    assert.equal(byValue.value, byAddress.value);
    settings.set("minCTAs", 5);
    twin.need("ncclCommInitRankScalable")(byAddress, 8, rank, 2, first, settings);
    assert.notEqual(byValue.value, byAddress.value);
  });

  it("is refused where it is another struct, or more than one", () => {
    const out = provider.out("ncclComm_t");
    const two = provider.struct(NCCL_UNIQUE_ID, 2);
    assert.throws(() => twin.symbols.ncclCommInitRank(out, 1, two, 0), (error) => {
      assert.ok(error instanceof ArgumentError);
      assert.match(error.message, /^Cannot pass <ncclUniqueId> as argument 3 of 'ncclCommInitRank' as its type is ncc/);
      return true;
    });
  });
});

describe("a call of many arguments", () => {
  it("launches with the config, attributes and argument addresses that were set", () => {
    const launch = provider.struct(CUDA_LAUNCH_CONFIG);
    launch.set("gridDim.x", 7);
    launch.set("gridDim.z", 3);
    launch.set("blockDim.x", 128);
    launch.set("blockDim.y", 2);
    launch.set("dynamicSmemBytes", 98304);
    const attribute = provider.struct(CUDA_LAUNCH_ATTRIBUTE);
    attribute.set("val.priority", -4);
    launch.set("attrs", provider.addressOf(attribute.bytes));
    launch.set("numAttrs", 1);

    const result = new Float64Array(new ArrayBuffer(64));
    const values = [provider.struct(POINTERS), new Uint32Array([4_000_000_000]), new Float32Array([0.375])] as const;
    values[0].set("at", provider.addressOf(result));
    const pointers = provider.struct(POINTERS, values.length);
    [values[0].bytes, values[1], values[2]].forEach((value, index) => {
      pointers.set("at", provider.addressOf(value), index);
    });
    twin.symbols.cudaLaunchKernelExC(launch, provider.nullAddress, pointers.bytes);
    assert.deepEqual([...result], [4_000_000_000, 0.375, 70103, 1280201, 98304, 0, -4, 1]);
  });

  it("passes the 16 of a matrix product in their order", () => {
    const bytes = new Uint8Array(new ArrayBuffer(64));
    const start = provider.addressOf(bytes);
    const place = (at: number): NativeAddress => provider.offset(start, at);
    // The twin expects each at its distance from the first. A handle is what an out-parameter or a member gives.
    const memory = provider.struct({
      name: "one place",
      byteLength: 8,
      fields: {
        handle: { offset: 0, type: "cublasLtHandle_t" },
        descriptor: { offset: 0, type: "cublasLtMatmulDesc_t" },
        layout: { offset: 0, type: "cublasLtMatrixLayout_t" },
        stream: { offset: 0, type: "cudaStream_t" },
        address: { offset: 0, type: "address" },
        number: { offset: 0, type: "usize" },
      },
    });
    const at = <F extends "handle" | "descriptor" | "layout" | "stream" | "number">(field: F, distance: number) => {
      memory.set("address", place(distance));
      return memory.get(field);
    };
    const results = provider.struct(CUBLASLT_MATMUL_HEURISTIC_RESULT, 2);
    results.get("algo", 1)[63] = 9;
    const call = (beta: number): void =>
      twin.symbols.cublasLtMatmul(
        at("handle", 0),
        at("descriptor", 1),
        new Float32Array([1.5]),
        place(2),
        at("layout", 3),
        place(4),
        at("layout", 5),
        new Float32Array([beta]),
        place(6),
        at("layout", 7),
        place(8),
        at("layout", 9),
        results.get("algo", 1),
        place(10),
        at("number", 11),
        at("stream", 12),
      );
    call(0.25);
    assert.throws(() => call(0.5), NativeError);
  });
});

describe("statuses", () => {
  it("that are ordinary outcomes are returned", () => {
    assert.equal(twin.symbols.ncclGroupEnd(), 7);
  });

  it("that are failures have name, text, last error, call and arguments", () => {
    const out = provider.out("i32");
    assert.throws(() => twin.symbols.ncclCommGetAsyncError(provider.nullAddress, out), (error) => {
      assert.ok(error instanceof NativeError);
      assert.deepEqual([error.library, error.call, error.status, error.code], [
        "twin",
        "ncclCommGetAsyncError",
        4,
        "ncclInvalidArgument",
      ]);
      assert.equal(
        error.message,
        "twin 'ncclCommGetAsyncError' failed with status 4: ncclInvalidArgument " +
          "(invalid argument; comm is NULL, said the twin): ncclCommGetAsyncError(0x0, <out>)",
      );
      return true;
    });
    assert.equal(out.value, 7, "what C wrote before it failed is there");
  });
});

describe("openLibrary()", () => {
  it("names all that a library of another release lacks, and the release that serves", async () => {
    await assert.rejects(openLibrary(NCCL, { provider, path: twin.path }), (error) => {
      assert.ok(error instanceof LibraryNotFoundError);
      const [tried] = error.tried;
      assert.match(tried?.reason ?? "", /^it lacks 'ncclGetVersion', .*'ncclRecv', which releases from 2\.19 on have$/);
      assert.doesNotMatch(tried?.reason ?? "", /'ncclCommInitRank'|'ncclCommWindowRegister'/);
      assert.match(error.message, /^Cannot open NCCL\. Install it with 'pip install nvidia-nccl-cu13'/);
      return true;
    });
  });
});

describe("Library.need()", () => {
  it("names the release that has what this one lacks", () => {
    assert.equal(twin.symbols.ncclCommWindowDeregister, undefined);
    assert.throws(() => twin.need("ncclCommWindowDeregister"), (error) => {
      assert.ok(error instanceof UnsupportedError);
      assert.match(error.message, /^Cannot call 'ncclCommWindowDeregister' of twin: \/.*nccl_twin\.c\.so lacks it/);
      assert.match(
        error.message,
        /, which releases from 2\.27 on have\. Install it with 'pip install nvidia-nccl-cu13'/,
      );
      return true;
    });
  });
});
