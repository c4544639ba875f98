/**
 * The report of `fullyshard doctor` on NVIDIA GPUs: on machines that lack something, by stubs of the libraries, and with the real
 * libraries where they are here.
 *
 * @module
 */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { describe, it } from "node:test";
import { FETCHED } from "../../scripts/cuda_kernels/compile.ts";
import { doctor, examine } from "../../src/cli/doctor.ts";
import { CUDART_BINDINGS } from "../../src/ffi/bindings/cudart.ts";
import { CUDNN_BINDINGS } from "../../src/ffi/bindings/cudnn.ts";
import { NCCL_BINDINGS } from "../../src/ffi/bindings/nccl.ts";
import { NVML_BINDINGS } from "../../src/ffi/bindings/nvml.ts";
import { NVRTC_BINDINGS } from "../../src/ffi/bindings/nvrtc.ts";
import { environmentFrom } from "../../src/runtime/env.ts";
import { platform } from "../../src/runtime/processes.ts";
import type { EnvName } from "../../src/runtime/variables.ts";
import { buildStub } from "../support/stub_library.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";

const NOWHERE = "/nonexistent/library.so";
/** No library of CUDA but those that a test names. */
const NOTHING: Partial<Record<EnvName, string>> = {
  FULLYSHARD_CUDART_LIBRARY: NOWHERE,
  FULLYSHARD_NVRTC_LIBRARY: NOWHERE,
  FULLYSHARD_CUBLASLT_LIBRARY: NOWHERE,
  FULLYSHARD_NCCL_LIBRARY: NOWHERE,
  FULLYSHARD_CUDNN_LIBRARY: NOWHERE,
  CUDA_MPS_PIPE_DIRECTORY: "/nonexistent",
};
const skip = platform().os !== "linux" || spawnSync("gcc", ["--version"]).status !== 0 ? "needs gcc on Linux" : false;

/** The exit code, and the text without line breaks between words. */
async function run(values: Partial<Record<EnvName, string>>): Promise<{ code: number; text: string }> {
  let text = "";
  const environment = environmentFrom((name) => ({ ...NOTHING, ...values })[name]);
  const code = await doctor({ json: false, width: 500 }, (piece) => void (text += piece), environment);
  return { code, text };
}

/** A CUDA runtime that tells versions, and as many cards. */
function runtimeOf(
  directory: TemporaryDirectory,
  versions: { readonly driver: number; readonly runtime: number; readonly cards?: number },
  functions: Readonly<Record<string, string | null>> = {},
): string {
  const { driver, runtime, cards = 0 } = versions;
  return buildStub(directory, "libcudart.so", CUDART_BINDINGS, {
    cudaDriverGetVersion: `int cudaDriverGetVersion(int *v) { *v = ${driver}; return 0; }`,
    cudaRuntimeGetVersion: `int cudaRuntimeGetVersion(int *v) { *v = ${runtime}; return 0; }`,
    cudaGetDeviceCount: `int cudaGetDeviceCount(int *n) { *n = ${cards}; return ${cards === 0 ? 100 : 0}; }`,
    ...functions,
  });
}

describe("doctor() of GPUs", { skip }, () => {
  it("without anything says what is missing and how to install it, which is no problem", async () => {
    const { code, text } = await run({});
    assert.equal(code, 0);
    assert.match(text, /^cuda +no GPU can be used: the CUDA runtime is not there, or does not work$/m);
    assert.match(text, /^CUDA runtime +missing .*\n +would give: training on NVIDIA GPUs .*\n +Install it with 'pip /m);
    assert.match(text, /^cuDNN +missing .*\n +would give: attention by cuDNN .*\n +Install it with 'pip /m);
    assert.match(text, /^NVRTC +missing .*\n +would give: compilation of the GPU kernels .*\n +Install it with 'pip /m);
    assert.doesNotMatch(text, /This version does not use it/);
  });

  it("with the libraries and no driver names the versions and asks for the driver", async () => {
    using directory = temporaryDirectory();
    const cudart = runtimeOf(directory, { driver: 0, runtime: 13_000 });
    const { code, text } = await run({ FULLYSHARD_CUDART_LIBRARY: cudart });
    assert.equal(code, 0);
    assert.match(
      text,
      /^cuda +runtime 13\.0\n +no GPU can be used: there is no NVIDIA driver\. Install NVIDIA's driver/m,
    );
    assert.match(text, /^CUDA runtime +loaded 13\.0, /m);
  });

  it("with the wheels of PyPI alone says the same, and NCCL's build", {
    skip: existsSync(FETCHED) ? false : "needs the libraries: run scripts/cuda_libraries.sh",
  }, async () => {
    const environment = environmentFrom((name) => name === "VIRTUAL_ENV" ? FETCHED : undefined);
    const { cuda, libraries, problems } = await examine(environment);
    const versionOf = (name: string): string | null | undefined => libraries.find((one) => one.name === name)?.version;
    assert.deepEqual(["CUDA runtime", "NVRTC", "NCCL"].map(versionOf), ["13.0", "13.0", "2.28.9 for CUDA 13.0"]);
    assert.deepEqual(problems, []);
    if (cuda.driver !== null) return;
    assert.match(cuda.obstacle ?? "", /^there is no NVIDIA driver\. Install NVIDIA's driver of CUDA 12 or newer/);
  });

  it("with a broken runtime says which file, and how to install another", async () => {
    using directory = temporaryDirectory();
    const path = directory.write("libcudart.so.13", "text ".repeat(20));
    const { code, text } = await run({ FULLYSHARD_CUDART_LIBRARY: path });
    assert.equal(code, 1);
    assert.match(
      text,
      /^CUDA runtime +broken .*\n.*invalid ELF header\n +would give: .*\n +Install it with 'pip /m,
    );
    assert.match(text, /^Problems \(1\):\n {2}CUDA runtime: .*libcudart\.so\.13: invalid ELF header/m);
  });

  it("with a too old runtime says which is needed", async () => {
    using directory = temporaryDirectory();
    const later = Object.entries(CUDART_BINDINGS).filter(([, binding]) => "since" in binding).map(([name]) => name);
    const lacking = Object.fromEntries(later.map((name) => [name, null]));
    const cudart = runtimeOf(directory, { driver: 12_080, runtime: 12_040 }, lacking);
    const { code, text } = await run({ FULLYSHARD_CUDART_LIBRARY: cudart });
    assert.equal(code, 1);
    const said = "is for CUDA 12.4, which loads no kernels: 12.8 is the oldest that does. " +
      "Install a newer one with 'pip install --upgrade nvidia-cuda-runtime-cu12'";
    assert.ok(text.includes(`no GPU can be used: the CUDA runtime (${cudart}) ${said}`), text);
    assert.match(text, /^Problems \(1\):\n {2}no GPU can be used: the CUDA runtime /m);
  });

  it("with libraries for a newer driver says which go with the driver", async () => {
    using directory = temporaryDirectory();
    const values = {
      FULLYSHARD_CUDART_LIBRARY: runtimeOf(directory, { driver: 12_040, runtime: 13_000 }),
      FULLYSHARD_NVRTC_LIBRARY: buildStub(directory, "libnvrtc.so", NVRTC_BINDINGS, {
        nvrtcVersion: "int nvrtcVersion(int *a, int *b) { *a = 13; *b = 0; return 0; }",
      }),
    };
    const { code, text } = await run(values);
    assert.equal(code, 1);
    assert.match(
      text,
      /^cuda +driver of CUDA 12\.4, runtime 13\.0, NVRTC 13\.0\n +no GPU can be used: the NVIDIA driver is /m,
    );
    assert.match(text, /^Problems \(2\):\n.* Install a newer driver, or 'pip install nvidia-cuda-runtime-cu12'$/m);
    assert.match(
      text,
      /^ {2}NVRTC is for CUDA 13, the driver for CUDA 12: 'pip install nvidia-cuda-nvrtc-cu12'$/m,
    );
  });

  it("with a too old NCCL says which is needed", async () => {
    using directory = temporaryDirectory();
    const nccl = buildStub(directory, "libnccl.so", NCCL_BINDINGS, {
      ncclGetVersion: "int ncclGetVersion(int *v) { *v = 21805; return 0; }\n" +
        'const char stubBuild[] = "NCCL version 2.18.5+cuda12.2";',
      ncclCommInitRankScalable: null,
    });
    const { code, text } = await run({ FULLYSHARD_NCCL_LIBRARY: nccl });
    assert.equal(code, 1);
    assert.match(text, /^NCCL +loaded 2\.18\.5 for CUDA 12\.2, /m);
    assert.match(text, /NCCL 2\.18\.5 gathers by kernels; from 2\.28 on by copy engines between symmetric\s+memory/);
    const said = "NCCL 2.18.5 is too old, 2.23 is the oldest that serves: 'pip install --upgrade nvidia-nccl-cu12'";
    assert.ok(text.includes(`Problems (1):\n  ${said}\n`), text);
  });

  it("with an NCCL that cannot be opened, as it is too old, says which is needed", async () => {
    using directory = temporaryDirectory();
    const nccl = buildStub(directory, "libnccl.so", NCCL_BINDINGS, {
      ncclGetVersion: "int ncclGetVersion(int *v) { *v = 21801; return 0; }\n" +
        'const char stubBuild[] = "NCCL version 2.18.1+cuda12.1";',
      ...{ ncclMemAlloc: null, ncclMemFree: null, ncclCommInitRankScalable: null },
    });
    const { code, text } = await run({ FULLYSHARD_NCCL_LIBRARY: nccl });
    assert.equal(code, 1);
    const said = "NCCL 2.18.1 is too old, 2.23 is the oldest that serves: 'pip install --upgrade nvidia-nccl-cu12'";
    assert.ok(text.includes(`Problems (1):\n  NCCL: ${nccl}: ${said}\n`), text);
    assert.match(text, /^NCCL +broken/m);
  });

  it("with a runtime that is cut off says so, and ends", async () => {
    using directory = temporaryDirectory();
    const path = runtimeOf(directory, { driver: 13_000, runtime: 13_000 });
    writeFileSync(path, readFileSync(path).subarray(0, 4096));
    const { code, text } = await run({ FULLYSHARD_CUDART_LIBRARY: path });
    assert.equal(code, 1);
    assert.match(text, /^Problems \(1\):\n {2}CUDA runtime: .*: it is cut off: it has 4096 bytes, and needs \d+$/m);
  });

  it("with cuDNN says whether it can compute attention, and which goes with the driver", async () => {
    using directory = temporaryDirectory();
    const cudnnOf = (name: string, version: number): string =>
      buildStub(directory, name, CUDNN_BINDINGS, {
        cudnnGetVersion: `unsigned long cudnnGetVersion(void) { return ${version}; }`,
        cudnnGetCudartVersion: "unsigned long cudnnGetCudartVersion(void) { return 13020; }",
      });
    const good = await run({ FULLYSHARD_CUDNN_LIBRARY: cudnnOf("libcudnn_good.so", 92_801) });
    assert.equal(good.code, 0);
    assert.match(good.text, /^ +attention by cuDNN 9\.28\.1, which is for CUDA 13\.2, with --attention cudnn$/m);
    assert.match(good.text, /^cuDNN +loaded 9\.28\.1, .*libcudnn_good\.so$/m);
    const old = await run({ FULLYSHARD_CUDNN_LIBRARY: cudnnOf("libcudnn_old.so", 92_600) });
    assert.equal(old.code, 0);
    assert.match(
      old.text,
      /^ +attention by our own kernels alone: cuDNN 9\.26\.0 \(.+\) is too old, 9\.28 is the oldest that serves: 'pip install --upgrade nvidia-cudnn-cu13', or '-cu12' for a driver of CUDA 12$/m,
    );
    const cudart = runtimeOf(directory, { driver: 12_080, runtime: 12_080, cards: 1 });
    const values = {
      FULLYSHARD_CUDART_LIBRARY: cudart,
      FULLYSHARD_CUDNN_LIBRARY: `${directory.path}/libcudnn_good.so`,
    };
    const { code, text } = await run(values);
    assert.equal(code, 1);
    assert.match(text, /^ {2}cuDNN is for CUDA 13, the driver for CUDA 12: 'pip install nvidia-cudnn-cu12'$/m);
  });

  it("with a card that does not answer says which, and tells of the others", async () => {
    using directory = temporaryDirectory();
    const cudart = runtimeOf(directory, { driver: 13_000, runtime: 13_000, cards: 2 }, {
      cudaDeviceGetAttribute:
        "int cudaDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 9 : 0; return d == 0 ? 999 : 0; }",
      cudaDeviceCanAccessPeer: "int cudaDeviceCanAccessPeer(int *v, int a, int b) { *v = 0; return 0; }",
      cudaDeviceGetPCIBusId: "int cudaDeviceGetPCIBusId(char *t, int n, int d) { t[0] = 0; return 0; }",
    });
    const { code, text } = await run({ FULLYSHARD_CUDART_LIBRARY: cudart });
    assert.equal(code, 1);
    assert.match(text, /^Problems \(1\):\n {2}cuda:0 does not answer: .*cudaDeviceGetAttribute.* See 'nvidia-smi' /m);
    assert.match(text, /^ +cuda:1: compute capability 9\.0, /m);
    assert.doesNotMatch(text, /^ +cuda:0: /m);
  });

  it("with a card that neither others nor NVML can ask tells all of the others", async () => {
    using directory = temporaryDirectory();
    const cudart = runtimeOf(directory, { driver: 13_000, runtime: 13_000, cards: 3 }, {
      cudaDeviceGetAttribute:
        "int cudaDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 9 : 0; return d == 1 ? 999 : 0; }",
      cudaDeviceCanAccessPeer:
        "int cudaDeviceCanAccessPeer(int *v, int a, int b) { *v = 1; return a == 1 || b == 1 ? 999 : 0; }",
      cudaDeviceGetPCIBusId:
        "int cudaDeviceGetPCIBusId(char *t, int n, int d) { t[0] = '0' + d; t[1] = 0; return d == 1 ? 999 : 0; }",
    });
    buildStub(directory, "libnvidia-ml.so.1", NVML_BINDINGS, {
      nvmlDeviceGetName: "int nvmlDeviceGetName(void *d, char *t, unsigned n) { t[0] = 'N'; t[1] = 0; return 0; }",
      nvmlDeviceGetMigMode: "int nvmlDeviceGetMigMode(void *d, unsigned *now, unsigned *next) { return 3; }",
    });
    const { code, text } = await run({ FULLYSHARD_CUDART_LIBRARY: cudart, LD_LIBRARY_PATH: directory.path });
    assert.equal(code, 1);
    assert.match(text, /^Problems \(1\):\n {2}cuda:1 does not answer: /m);
    assert.match(text, /^ +cuda:0: N, compute capability 9\.0, .*, MIG off, reaches cuda:2 directly$/m);
    assert.match(text, /^ +cuda:2: N, compute capability 9\.0, .*, MIG off, reaches cuda:0 directly$/m);
  });

  it("with a runtime that does not tell its version calls it broken", async () => {
    using directory = temporaryDirectory();
    const cudart = runtimeOf(directory, { driver: 13_000, runtime: 13_000 }, {
      cudaRuntimeGetVersion: "int cudaRuntimeGetVersion(int *v) { return 999; }",
    });
    const { code, text } = await run({ FULLYSHARD_CUDART_LIBRARY: cudart });
    assert.equal(code, 1);
    assert.match(text, /^Problems \(1\):\n {2}CUDA runtime: .*cudaRuntimeGetVersion/m);
    assert.match(text, /^CUDA runtime +broken/m);
  });

  it("with what is no library says so at once, and waits for no pipe", async () => {
    using directory = temporaryDirectory();
    const pipe = directory.file("pipe.so");
    assert.equal(spawnSync("mkfifo", [pipe]).status, 0);
    symlinkSync("loop.so", directory.file("loop.so"));
    const cases: readonly (readonly [string, RegExp])[] = [
      [pipe, /pipe\.so: it is a pipe, a socket or a device, not a file/],
      [directory.path, /Is a directory/],
      [directory.write("empty.so", ""), /empty\.so: file too short/],
      [directory.file("loop.so"), /loop\.so: cannot open shared object file: Too many levels of symbolic links/],
    ];
    for (const [path, said] of cases) {
      const { code, text } = await run({ FULLYSHARD_CUDART_LIBRARY: path });
      assert.equal(code, 1);
      assert.match(text, /^Problems \(1\):\n {2}CUDA runtime: /m);
      assert.match(text, said);
    }
  });

  it("with cards tells what those that share them should know", async () => {
    using directory = temporaryDirectory();
    const cudart = runtimeOf(directory, { driver: 13_000, runtime: 13_010, cards: 2 }, {
      cudaDeviceGetAttribute:
        "int cudaDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 9 : a == 20 ? 3 * d : 0; return 0; }",
      cudaDeviceCanAccessPeer: "int cudaDeviceCanAccessPeer(int *v, int a, int b) { *v = a < b; return 0; }",
      cudaDeviceGetPCIBusId: "int cudaDeviceGetPCIBusId(char *t, int n, int d) { t[0] = '0' + d; t[1] = 0; return 0; }",
    });
    const values = { FULLYSHARD_CUDART_LIBRARY: cudart, CUDA_MPS_PIPE_DIRECTORY: directory.path };
    const plain = await run(values);
    assert.match(plain.text, /^cuda +driver of CUDA 13\.0, runtime 13\.1: they go together by minor version compat/m);
    assert.match(
      plain.text,
      /^ +cuda:0: (.*, )?compute capability 9\.0, open for all processes \(compute mode\), .*reaches cuda:1 directly$/m,
    );
    assert.match(plain.text, /^ +cuda:1: .*open for one process \(compute mode\), .*reaches no other card directly$/m);
    assert.match(plain.text, /^ +MPS does not run: processes on one card take turns$/m);
    assert.match(plain.text, /^shared memory +.* free$/m);

    directory.write("control", "");
    buildStub(directory, "libnvidia-ml.so.1", NVML_BINDINGS, {
      nvmlDeviceGetHandleByPciBusId_v2:
        "int nvmlDeviceGetHandleByPciBusId_v2(const char *t, void **d) { *d = (void *)(long)t[0]; return 0; }",
      nvmlDeviceGetName:
        "int nvmlDeviceGetName(void *d, char *t, unsigned n) { t[0] = 'N'; t[1] = (char)(long)d; t[2] = 0;" +
        " return 0; }",
      nvmlDeviceGetMigMode: "int nvmlDeviceGetMigMode(void *d, unsigned *now, unsigned *next) {" +
        " *now = (long)d == '1'; return 0; }",
    });
    const { text } = await run({ ...values, LD_LIBRARY_PATH: directory.path });
    assert.match(text, /^ +cuda:0: N0, .*, MIG off, /m);
    assert.match(text, /^ +cuda:1: N1, .*, MIG on, /m);
    assert.match(text, /^ +MPS runs: processes work on a card at the same time$/m);
  });
});
