/**
 * The tables of the CUDA libraries against what NVIDIA's headers say, by the committed table of facts; and the
 * comparison against mistakes that somebody might make. The facts' generator is `scripts/cuda_facts/main.ts`.
 *
 * @module
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, it } from "node:test";
import { mismatches } from "../../scripts/cuda_facts/compare.ts";
import { type LibraryFacts, mergeObservations } from "../../scripts/cuda_facts/facts.ts";
import { AUDITED, type Audited } from "../../scripts/cuda_facts/tables.ts";
import type { Binding, StructField, StructLayout } from "../../src/ffi/types.ts";

const FACTS: Readonly<Record<string, LibraryFacts>> = JSON.parse(
  readFileSync(new URL("../fixtures/cuda/facts.json", import.meta.url), "utf8"),
);

function of<T>(table: Readonly<Record<string, T>>, key: string): T {
  const found = table[key];
  assert.ok(found !== undefined, `no ${key}`);
  return found;
}

describe("mismatches()", () => {
  for (const [key, library] of Object.entries(AUDITED)) {
    it(`finds none between the tables of ${library.spec.name} and the headers`, () => {
      assert.deepEqual(mismatches(library, of(FACTS, key)), []);
    });
  }

  it("has facts of every library and no other", () => {
    assert.deepEqual(Object.keys(FACTS), Object.keys(AUDITED));
  });
});

/** The findings where one binding is changed. */
function withBinding(key: string, name: string, change: Partial<Binding>): string[] {
  const library = of(AUDITED, key);
  const bindings = { ...library.spec.bindings, [name]: { ...of(library.spec.bindings, name), ...change } };
  return mismatches({ ...library, spec: { ...library.spec, bindings } }, of(FACTS, key));
}

/** The findings where one struct is changed. */
function withStruct(key: string, name: string, change: (layout: StructLayout) => Partial<StructLayout>): string[] {
  const library = of(AUDITED, key);
  const structs = library.structs.map((layout) => layout.name === name ? { ...layout, ...change(layout) } : layout);
  return mismatches({ ...library, structs }, of(FACTS, key));
}

/** The findings where one member of a struct is changed. */
function withField(key: string, name: string, field: string, change: Partial<StructField>): string[] {
  return withStruct(
    key,
    name,
    ({ fields }) => ({ fields: { ...fields, [field]: { ...of(fields, field), ...change } } }),
  );
}

function withLibrary(key: string, change: (library: Audited) => Partial<Audited>): string[] {
  const library = of(AUDITED, key);
  return mismatches({ ...library, ...change(library) }, of(FACTS, key));
}

describe("mismatches() names the symbol, the table's word and the header's, for", () => {
  it("swapped arguments", () => {
    assert.deepEqual(withBinding("cudart", "cudaStreamWaitEvent", { args: ["cudaEvent_t", "cudaStream_t", "u32"] }), [
      "CUDA runtime: argument 1 of cudaStreamWaitEvent is cudaEvent_t in the table, " +
      "cudaStream_t in enum(cudaStream_t, cudaEvent_t, u32) in 12.4.127",
    ]);
    assert.deepEqual(withBinding("cudart", "cudaMemsetAsync", { args: ["address", "usize", "i32", "cudaStream_t"] }), [
      "CUDA runtime: argument 2 of cudaMemsetAsync is usize in the table, " +
      "i32 in enum(void*, i32, u64, cudaStream_t) in 12.4.127",
    ]);
  });

  it("a missing argument, a wrong result, a wrong out-parameter", () => {
    assert.match(
      withBinding("cudart", "cudaFreeAsync", { args: ["address"] }).join(),
      /cudaFreeAsync takes 1 arguments in the table, and is enum\(void\*, cudaStream_t\) in 12\.4\.127$/,
    );
    assert.match(
      withBinding("cublaslt", "cublasLtGetVersion", { result: "i32" }).join(),
      /cublasLtGetVersion returns i32 in the table, u64 in u64\(\)/,
    );
    for (const out of ["i32", "u64", "cudaEvent_t", "f64"] as const) {
      const found = withBinding("cudart", "cudaEventElapsedTime", { args: [{ out }, "cudaEvent_t", "cudaEvent_t"] });
      assert.match(found.join(), /argument 1 of cudaEventElapsedTime is \{"out":"\w+"\} in the table, f32\* in enum/);
    }
    assert.match(
      withBinding("cudart", "cudaMalloc", { args: [{ out: "usize" }, "usize"] }).join(),
      /argument 1 of cudaMalloc is \{"out":"usize"\} in the table, void\*\* in/,
    );
  });

  it("a struct by address that goes by value, and the reverse", () => {
    const { args } = of(of(AUDITED, "nccl").spec.bindings, "ncclCommInitRank");
    assert.match(
      withBinding("nccl", "ncclCommInitRank", {
        args: args.map((type) => typeof type === "object" && "value" in type ? { pointer: type.value } : type),
      }).join(),
      /argument 3 of ncclCommInitRank is \{"pointer":"ncclUniqueId"\} in the table, ncclUniqueId in/,
    );
    assert.match(
      withBinding("nccl", "ncclCommInitRank", {
        args: args.map((type) => typeof type === "object" && "value" in type ? { ...type, byteLength: 120 } : type),
      }).join(),
      /argument 3 of ncclCommInitRank is \{"value":"ncclUniqueId","byteLength":120\} in the table, ncclUniqueId in/,
    );
    assert.match(
      withBinding("nccl", "ncclGetUniqueId", { args: [{ value: "ncclUniqueId", byteLength: 128 }] }).join(),
      /argument 1 of ncclGetUniqueId is .* in the table, ncclUniqueId\* in/,
    );
    assert.match(
      withBinding("nccl", "ncclGetUniqueId", { args: [{ pointer: "ncclConfig_t" }] }).join(),
      /argument 1 of ncclGetUniqueId is \{"pointer":"ncclConfig_t"\} in the table, ncclUniqueId\* in/,
    );
  });

  it("a symbol that does not exist, or not yet, or already", () => {
    assert.match(
      withBinding("cudart", "cudaMalloc", { symbol: "cudaMallok" }).join(" | "),
      /function cudaMallok is in the table, and no release has it.* \| .*function cudaMalloc is in the facts, and not/,
    );
    const binding = of(of(AUDITED, "nccl").spec.bindings, "ncclCommWindowRegister");
    assert.deepEqual(withBinding("nccl", "ncclCommWindowRegister", { ...binding, since: "2.26" }), [
      "NCCL: ncclCommWindowRegister is in the table since 2.26, and absent in 2.26.5",
    ]);
    assert.deepEqual(withBinding("nccl", "ncclCommWindowRegister", { ...binding, since: "2.28" }), [
      "NCCL: ncclCommWindowRegister is there since 2.28 by the table, and there already in 2.27.3",
    ]);
    assert.deepEqual(withLibrary("nccl", ({ spec }) => ({ spec: { ...spec, oldest: "2.2" } })), [
      "NCCL: the oldest that serves is 2.2, the oldest audited 2.19.3",
    ]);
  });

  it("a function that a header renames or does not export", () => {
    const observed = (fact: string): string => {
      const library: Audited = {
        ...of(AUDITED, "cudart"),
        spec: { name: "X", oldest: "1", bindings: { f: { args: [], result: "void", check: "none" } } },
        constants: {},
        structs: [],
        releases: [{ version: "1.0", wheels: [] }],
      };
      return mismatches(library, mergeObservations([["1.0", new Map([["function", new Map([["f", fact]])]])]])).join();
    };
    assert.equal(observed("void()"), "");
    assert.equal(observed("not exported: void()"), "X: f is not exported: void() in 1.0");
    assert.equal(observed("renamed f_v2"), "X: f is renamed f_v2 in 1.0");
  });

  it("a wrong constant, and a wrong status", () => {
    const wrong = { cudaMemcpyDeviceToHost: 3 };
    assert.deepEqual(withLibrary("cudart", ({ constants }) => ({ constants: { ...constants, ...wrong } })), [
      "CUDA runtime: cudaMemcpyDeviceToHost is 3 in the table, 2 in 12.4.127",
    ]);
    const statuses = { names: { 601: "cudaErrorNotReady", 910: "cudaErrorGraphExecUpdateFailure" } };
    assert.deepEqual(withLibrary("cudart", ({ spec }) => ({ spec: { ...spec, statuses } })), [
      "CUDA runtime: cudaErrorNotReady is 601 in the table, 600 in 12.4.127",
    ]);
  });

  it("a wrong offset, type, size or initial value", () => {
    const everywhere = of(FACTS, "cudart").releases;
    assert.deepEqual(
      withField("cudart", "cudaLaunchConfig_t", "stream", { offset: 28 }),
      everywhere.map((release) =>
        `CUDA runtime: cudaLaunchConfig_t.stream is cudaStream_t@28 in the table, cudaStream_t@32 in ${release}`
      ),
    );
    assert.match(
      withField("cuda", "CUlaunchConfig", "sharedMemBytes", { type: "usize" }).join(),
      /CUlaunchConfig\.sharedMemBytes is usize@24 in the table, u32@24 in/,
    );
    assert.match(
      withStruct("cublaslt", "cublasLtMatmulHeuristicResult_t", () => ({ byteLength: 88 })).join(),
      /cublasLtMatmulHeuristicResult_t has 88 bytes in the table, 96 in/,
    );
    assert.deepEqual(withField("nccl", "ncclConfig_t", "magic", { initial: 0xcafebabe }), [
      `NCCL: ncclConfig_t.magic is initially ${0xcafebabe} in the table, ` +
      `${0xcafebeef} in NCCL_CONFIG_INITIALIZER of 2.28.9`,
    ]);
    assert.deepEqual(withStruct("nccl", "ncclConfig_t", () => ({ prefixes: { "2.23.4": 56, "2.28.9": 80 } })), [
      "NCCL: ncclConfig_t has 56 bytes in the table, 48 in 2.23.4",
    ]);
  });

  it("facts that are not of these tables", () => {
    assert.match(
      withLibrary("nvrtc", ({ releases }) => ({ releases: releases.slice(1) })).join(),
      /releases 12\.9\.86, .* in the tables, 12\.4\.127, .* in the facts: regenerate/,
    );
    assert.match(
      withLibrary("nvml", ({ constants }) => ({ constants: { ...constants, NVML_NEW: 1 } })).join(),
      /constant NVML_NEW is in the table, and no release has it, or there are no facts of it yet/,
    );
  });
});
