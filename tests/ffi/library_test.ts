/**
 * The places in which libraries are looked for, and the error when none works.
 *
 * @module
 */
import assert from "node:assert/strict";
import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { describe, it } from "node:test";
import { LibraryNotFoundError } from "../../src/errors.ts";
import { CUBLASLT } from "../../src/ffi/bindings/cublaslt.ts";
import { CUDA } from "../../src/ffi/bindings/cuda.ts";
import { CUDART } from "../../src/ffi/bindings/cudart.ts";
import { LIBC } from "../../src/ffi/bindings/libc.ts";
import { NCCL } from "../../src/ffi/bindings/nccl.ts";
import { NVRTC } from "../../src/ffi/bindings/nvrtc.ts";
import { MPI } from "../../src/ffi/bindings/mpi.ts";
import { candidatePaths, isAbsence } from "../../src/ffi/library.ts";
import { openLibrary } from "../../src/ffi/mod.ts";
import type { Environment } from "../../src/runtime/env.ts";
import { environmentFrom } from "../../src/runtime/env.ts";
import type { EnvName } from "../../src/runtime/variables.ts";
import { buildTwin } from "../native/build.ts";
import { elfFile } from "../support/elf_file.ts";
import { temporaryDirectory } from "../support/temporary.ts";

function environment(values: Partial<Record<EnvName, string>> = {}): Environment {
  return environmentFrom((name) => values[name]);
}

async function refusal(promise: Promise<unknown>): Promise<LibraryNotFoundError> {
  const error = await promise.then(() => undefined, (reason: unknown) => reason);
  assert.ok(error instanceof LibraryNotFoundError, `rejected with ${String(error)}`);
  return error;
}

describe("candidatePaths()", () => {
  it("takes a named file and nothing else", () => {
    const values = { FULLYSHARD_NVRTC_LIBRARY: "/opt/a.so", VIRTUAL_ENV: "/venv" };
    assert.deepEqual(candidatePaths(NVRTC, environment(values)), ["/opt/a.so"]);
    assert.deepEqual(candidatePaths(NVRTC, environment(values), "/opt/b.so"), ["/opt/b.so"]);
  });

  it("goes from Python environments over directories to the system's", () => {
    using directory = temporaryDirectory();
    const venv = directory.path;
    mkdirSync(`${venv}/lib/python3.11/site-packages/nvidia/nccl/lib`, { recursive: true });
    mkdirSync(`${venv}/lib/python3.13`, { recursive: true });
    const values = {
      VIRTUAL_ENV: venv,
      CONDA_PREFIX: "/conda",
      CUDA_HOME: "/cuda",
      LD_LIBRARY_PATH: "/ld:relative::/ld2",
    };
    const paths = candidatePaths(NCCL, environment(values)).filter((path) => path.endsWith("libnccl.so.2"));
    const head = [
      `${venv}/lib`,
      `${venv}/lib/python3.11/site-packages/nvidia/nccl/lib`,
      `${venv}/lib/python3.13/site-packages/nvidia/nccl/lib`,
      "/conda/lib",
      "/cuda/lib64",
      "/ld",
      "/ld2",
    ];
    assert.deepEqual(paths.slice(0, head.length), head.map((place) => `${place}/libnccl.so.2`));
    assert.ok(paths.slice(head.length).includes("/usr/lib/libnccl.so.2"));
  });

  it("gives absolute paths only, as a bare name is taken from the working directory", () => {
    for (const source of [CUDA, CUDART, NVRTC, CUBLASLT, NCCL, MPI]) {
      for (const path of candidatePaths(source, environment())) assert.match(path, /^\//);
    }
  });

  it("looks for wheels in a Python environment, newest CUDA first, before the system", () => {
    using directory = temporaryDirectory();
    const packages = `${directory.path}/lib/python3.12/site-packages`;
    mkdirSync(packages, { recursive: true });
    const paths = candidatePaths(CUDART, environment({ VIRTUAL_ENV: directory.path }));
    const [cu13, cu12] = ["nvidia/cu13/lib/libcudart.so.13", "nvidia/cuda_runtime/lib/libcudart.so.12"];
    const order = [`${packages}/${cu13}`, `${packages}/${cu12}`, "/usr/lib64/libcudart.so.13"].map((path) =>
      paths.indexOf(path)
    );
    assert.ok(order.every((place) => place >= 0), paths.join("\n"));
    assert.deepEqual(order, order.toSorted((a, b) => a - b));
  });

  it("looks for the driver's libraries where containers and WSL have them", () => {
    const paths = candidatePaths(CUDA, environment());
    assert.deepEqual(paths.slice(-2), ["/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"]);
  });

  it("looks for CUDA_HOME only where the library is CUDA's, and for libc by name alone", () => {
    const paths = candidatePaths({ ...NVRTC, cuda: false }, environment({ CUDA_HOME: "/cuda" }));
    assert.ok(!paths.some((path) => path.startsWith("/cuda")));
    assert.deepEqual(candidatePaths(LIBC, environment()), [...LIBC.sonames]);
  });
});

describe("openLibrary()", () => {
  it("lists each path tried and why it failed, and how to install it", async () => {
    const spec = { ...NVRTC, sonames: ["libnot-there-at-all.so.1"] };
    const error = await refusal(openLibrary(spec, { environment: environment({ CONDA_PREFIX: "/conda" }) }));
    assert.equal(error.library, "NVRTC");
    assert.deepEqual(error.tried[0], { path: "/conda/lib/libnot-there-at-all.so.1", reason: "no such file" });
    assert.ok(error.tried.every(({ reason }) => isAbsence(reason)));
    assert.match(error.message, /^Cannot open NVRTC\. Install it with 'pip install nvidia-cuda-nvrtc'/);
    assert.match(error.message, /Paths tried:\n {2}\/conda\/lib\/libnot-there-at-all\.so\.1: no such file\n/);
  });

  it("says of a bare name that the dynamic linker does not know it", async () => {
    const path = "libnot-there-at-all.so.1";
    const error = await refusal(openLibrary(NVRTC, { environment: environment(), path }));
    assert.deepEqual(error.tried, [{ path, reason: "not known to the dynamic linker" }]);
    assert.ok(isAbsence(error.tried[0]?.reason ?? ""));
  });

  it("tells a broken file from a missing one", async () => {
    using directory = temporaryDirectory();
    const text = `${directory.path}/libnvrtc.so.13`;
    writeFileSync(text, "This is a text file that somebody has named like a library, of more than sixty-four bytes.\n");
    const error = await refusal(openLibrary(NVRTC, { environment: environment({ FULLYSHARD_NVRTC_LIBRARY: text }) }));
    assert.deepEqual(error.tried, [{ path: text, reason: "invalid ELF header" }]);
    assert.ok(!isAbsence(error.tried[0]?.reason ?? ""));
  });

  it("tells a file that is cut off, which would end the process", async () => {
    using directory = temporaryDirectory();
    const path = `${directory.path}/libcut.so`;
    const whole = elfFile(["libOpenCL-not-there.so.1"]);
    for (const length of [70, 150, whole.byteLength - 1]) {
      writeFileSync(path, whole.subarray(0, length));
      const error = await refusal(openLibrary(NVRTC, { environment: environment(), path }));
      const needed = length < 64 + 2 * 56 ? 64 + 2 * 56 : whole.byteLength;
      const reason = `it is cut off: it has ${length} bytes, and needs ${needed}`;
      assert.deepEqual(error.tried, [{ path, reason }]);
      assert.ok(!isAbsence(reason));
    }
    writeFileSync(path, whole);
    const error = await refusal(openLibrary(NVRTC, { environment: environment(), path }));
    assert.match(error.tried[0]?.reason ?? "", /^libOpenCL-not-there\.so\.1: cannot open/);
  });

  it("names the dependency that a library lacks, as the dynamic linker does", async () => {
    using directory = temporaryDirectory();
    const path = `${directory.path}/libneedy.so`;
    writeFileSync(path, elfFile(["libc.so.6", "libOpenCL-not-there.so.1", "libno.so.2"]));
    const error = await refusal(openLibrary(NVRTC, { environment: environment(), path }));
    const reason = "libOpenCL-not-there.so.1: cannot open shared object file: No such file or directory";
    assert.deepEqual(error.tried, [{ path, reason }]);
    assert.ok(!isAbsence(reason));
  });

  it("names the symbol that a library lacks", async () => {
    const error = await refusal(openLibrary(NVRTC, { environment: environment(), path: "libc.so.6" }));
    assert.match(error.tried[0]?.reason ?? "", /nvrtc\w+/);
  });

  it("goes on to the next path after a broken one", async () => {
    using directory = temporaryDirectory();
    mkdirSync(`${directory.path}/lib`);
    writeFileSync(`${directory.path}/lib/libc.so.6`, "broken");
    const spec = { ...LIBC, systemOnly: false };
    const library = await openLibrary(spec, { environment: environment({ CONDA_PREFIX: directory.path }) });
    assert.deepEqual(library.tried[0], { path: `${directory.path}/lib/libc.so.6`, reason: "file too short" });
    assert.match(library.path, /^\/.*libc\.so\.6$|^libc\.so\.6$/);
    assert.ok(library.symbols.getpid() > 0);
    library.close();
  });
});

describe("openLibrary() of a CUDA library", () => {
  const bindings = { ncclGroupEnd: { args: [], result: "i32", check: "none" } } as const;

  it("keeps it loaded, with the files beside it that it looks for by name", async () => {
    using directory = temporaryDirectory();
    const [path, companion] = ["libnccl.so.2", "libfriend.so.13.0"].map((name) => directory.file(name));
    const built = buildTwin("nccl_twin.c", directory);
    for (const copy of [path, companion, directory.file("libfriend.so.13")]) copyFileSync(built, copy ?? "");
    const isLoaded = (file = ""): boolean => readFileSync("/proc/self/maps", "utf8").includes(file);

    const spec = { ...NCCL, bindings, companions: /^libfriend\.so\.\d+\.\d+$/ };
    const library = await openLibrary(spec, { environment: environment({ LD_LIBRARY_PATH: directory.path }) });
    assert.equal(library.path, path);
    assert.ok(isLoaded(companion));
    assert.ok(!isLoaded(`${directory.path}/libfriend.so.13\n`));
    library.close();
    assert.ok(isLoaded(path), "a thread of the library would have lost its code");
  });
});
