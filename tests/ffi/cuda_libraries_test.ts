/**
 * The real CUDA libraries on a machine that need not have a GPU: what they say without one, and NVRTC, which needs none.
 * Found in `.cuda/`, which `scripts/cuda_libraries.sh` fills, or else where the library itself would look.
 *
 * @module
 */
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { LibraryNotFoundError, NativeError } from "../../src/errors.ts";
import { CUDA } from "../../src/ffi/bindings/cuda.ts";
import { CUDART } from "../../src/ffi/bindings/cudart.ts";
import { NCCL, NCCL_CONFIG, NCCL_UNIQUE_ID } from "../../src/ffi/bindings/nccl.ts";
import { NVML } from "../../src/ffi/bindings/nvml.ts";
import { NVRTC } from "../../src/ffi/bindings/nvrtc.ts";
import { isAbsence, type LibrarySpec } from "../../src/ffi/library.ts";
import { openLibrary, openProvider } from "../../src/ffi/mod.ts";
import type { BindingTable, Library, NativeAddress } from "../../src/ffi/types.ts";
import { environmentFrom, processEnvironment } from "../../src/runtime/env.ts";

const fetched = fileURLToPath(new URL("../../.cuda", import.meta.url));
const environment = existsSync(fetched)
  ? environmentFrom((name) => name === "VIRTUAL_ENV" ? fetched : undefined)
  : processEnvironment();
const provider = await openProvider();

/** The library, if it is there. One that is there and does not open is a failure. */
async function find<T extends BindingTable>(spec: LibrarySpec<T>): Promise<Library<T> | undefined> {
  try {
    return await openLibrary(spec, { provider, environment });
  } catch (error) {
    const isAbsent = error instanceof LibraryNotFoundError && error.tried.every(({ reason }) => isAbsence(reason));
    if (isAbsent) return undefined;
    throw error;
  }
}

const hasDriver = await find(CUDA) !== undefined;
const cudart = await find(CUDART);
const nvrtc = await find(NVRTC);
const nccl = await find(NCCL);

/** The tests of a library; where it is absent, one that is skipped and says what they need. */
function testsOf<T extends BindingTable>(
  spec: LibrarySpec<T>,
  library: Library<T> | undefined,
  tests: (library: Library<T>) => void,
): void {
  describe(spec.name, () => {
    if (library === undefined) it("needs the library: run scripts/cuda_libraries.sh", { skip: true }, () => {});
    else tests(library);
  });
}

/** The failure of a call. */
function failureOf(call: () => unknown): NativeError {
  try {
    call();
  } catch (error) {
    assert.ok(error instanceof NativeError, String(error));
    return error;
  }
  assert.fail("the call did not fail");
}

testsOf(CUDART, cudart, (library) => {
  const { symbols } = library;
  it("says its version and the driver's", () => {
    const [runtime, driverVersion] = [provider.out("i32"), provider.out("i32")];
    symbols.cudaRuntimeGetVersion(runtime);
    symbols.cudaDriverGetVersion(driverVersion);
    assert.ok(runtime.value >= 12040, `version ${runtime.value}`);
    assert.equal(driverVersion.value > 0, hasDriver);
  });

  it("has each function that its release should have", () => {
    const version = provider.out("i32");
    symbols.cudaRuntimeGetVersion(version);
    for (const name of ["cudaLibraryLoadData", "cudaLibraryGetKernel"] as const) {
      assert.equal(symbols[name] !== undefined, version.value >= 12080, name);
    }
  });

  it("without a driver, names the failure of counting devices", { skip: hasDriver }, () => {
    const count = provider.out("i32");
    const error = failureOf(() => symbols.cudaGetDeviceCount(count));
    assert.deepEqual([error.library, error.call, error.status, error.code], [
      "CUDA runtime",
      "cudaGetDeviceCount",
      35,
      "cudaErrorInsufficientDriver",
    ]);
    assert.match(
      error.message,
      /cudaErrorInsufficientDriver \(CUDA driver version is insufficient for CUDA runtime version\): cudaGetDeviceCount\(<out>\)$/,
    );
  });
});

testsOf(NVRTC, nvrtc, (library) => {
  const { symbols } = library;
  const kernel = `extern "C" __global__ void scale(float *y, const float *x, float s, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * s;
  }`;

  it("compiles a kernel to a cubin for sm_90, and its log is read", () => {
    const compiled = compile(library, kernel, ["--gpu-architecture=sm_90", "--ptxas-options=-v"]);
    assert.equal(compiled.status, 0);
    assert.match(compiled.log, /Compiling entry function 'scale' for 'sm_90'/);
    assert.match(compiled.log, /Used \d+ registers/);
    const { cubin } = compiled;
    assert.deepEqual([...cubin.subarray(0, 4)], [0x7f, ...new TextEncoder().encode("ELF")]);
    const machine = new DataView(cubin.buffer).getUint16(18, true);
    assert.equal(machine, 190, "EM_CUDA");
    assert.ok(new TextDecoder("latin1").decode(cubin).includes("scale"));
  });

  it("reports a kernel that does not compile by its log", () => {
    const compiled = compile(library, kernel.replace("x[i]", "x[j]"), ["--gpu-architecture=sm_90"]);
    assert.equal(compiled.status, 6);
    assert.match(compiled.log, /scale\.cu\(3\): error: identifier "j" is undefined/);
  });

  it("names the failure of an option that it does not know", () => {
    const error = failureOf(() => compile(library, kernel, ["--gpu-architecture=sm_1"]));
    assert.equal(error.code, "NVRTC_ERROR_INVALID_OPTION");
  });

  it("supports the architectures that kernels are made for", () => {
    const count = provider.out("i32");
    symbols.nvrtcGetNumSupportedArchs(count);
    const archs = new Int32Array(count.value);
    symbols.nvrtcGetSupportedArchs(archs);
    for (const arch of [80, 86, 89, 90]) assert.ok(archs.includes(arch), `sm_${arch} of ${archs.join()}`);
  });
});

testsOf(NCCL, nccl, (library) => {
  const { symbols } = library;
  it("says its version", () => {
    const version = provider.out("i32");
    symbols.ncclGetVersion(version);
    assert.ok(version.value >= 21900 && version.value < 30000, `version ${version.value}`);
  });

  it("makes a unique id of 128 bytes", () => {
    const [id, other] = [provider.struct(NCCL_UNIQUE_ID), provider.struct(NCCL_UNIQUE_ID)];
    symbols.ncclGetUniqueId(id);
    symbols.ncclGetUniqueId(other);
    assert.equal(id.bytes.byteLength, 128);
    assert.notDeepEqual(id.bytes, other.bytes);
  });

  it("without a driver, says why no communicator can be made, id by address and by value", { skip: hasDriver }, () => {
    const comm = provider.out("ncclComm_t");
    const id = provider.struct(NCCL_UNIQUE_ID);
    const config = provider.struct(NCCL_CONFIG);
    config.set("size", NCCL_CONFIG.prefixes["2.23.4"]);
    config.set("version", 22304);
    config.set("blocking", 0);
    symbols.ncclGetUniqueId(id);
    const calls = {
      ncclCommInitRankScalable: () => library.need("ncclCommInitRankScalable")(comm, 1, 0, 1, id, config),
      ncclCommInitRankConfig: () => symbols.ncclCommInitRankConfig(comm, 1, id, 0, config),
      ncclCommInitRank: () => symbols.ncclCommInitRank(comm, 1, id, 0),
    };
    for (const [name, call] of Object.entries(calls)) {
      const error = failureOf(call);
      assert.deepEqual([error.call, error.status, error.code], [name, 1, "ncclUnhandledCudaError"]);
      assert.match(
        error.message,
        /ncclUnhandledCudaError \(unhandled cuda error .*; .*CUDA driver version.*\): ncclComm/s,
      );
    }
  });
});

describe("CUDA driver and NVML", () => {
  for (const spec of [CUDA, NVML]) {
    it(`${spec.name} opens, or each place where it was looked for is named with the remedy`, async () => {
      const library = await find<BindingTable>(spec);
      if (library !== undefined) return library.close();
      await assert.rejects(openLibrary<BindingTable>(spec, { provider, environment }), (error) => {
        assert.ok(error instanceof LibraryNotFoundError);
        assert.match(error.message, new RegExp(`^Cannot open ${spec.name}\\..*'--gpus all'`));
        const [soname] = spec.sonames;
        const places = error.tried.map(({ path }) => path);
        for (const folder of ["/usr/lib64", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib"]) {
          assert.ok(places.includes(`${folder}/${soname}`), `${folder} is not among ${places.join()}`);
        }
        return true;
      });
    });
  }
});

function compile(
  { symbols }: Library<typeof NVRTC.bindings>,
  source: string,
  options: readonly string[],
): { readonly status: number; readonly log: string; readonly cubin: Uint8Array } {
  const texts = options.map((option) => new TextEncoder().encode(`${option}\0`));
  const places: NativeAddress[] = texts.map((text) => provider.addressOf(text));
  const layout = { name: "const char *", byteLength: 8, fields: { at: { offset: 0, type: "address" } } } as const;
  const list = provider.struct(layout, places.length);
  places.forEach((place, index) => list.set("at", place, index));

  const program = provider.out("address");
  symbols.nvrtcCreateProgram(program, source, "scale.cu", 0, null, null);
  try {
    const status = symbols.nvrtcCompileProgram(program.value, texts.length, list.bytes);
    const size = provider.out("usize");
    symbols.nvrtcGetProgramLogSize(program.value, size);
    const log = new Uint8Array(size.value);
    symbols.nvrtcGetProgramLog(program.value, log);
    const cubin = status === 0 ? (symbols.nvrtcGetCUBINSize(program.value, size), new Uint8Array(size.value)) : log;
    if (status === 0) symbols.nvrtcGetCUBIN(program.value, cubin);
    return { status, log: new TextDecoder().decode(log), cubin };
  } finally {
    symbols.nvrtcDestroyProgram(program);
  }
}
