/**
 * `fullyshard doctor`: what it says, in both forms, of libraries that are there, missing and broken.
 *
 * @module
 */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { appendFileSync, cpSync, mkdirSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import process from "node:process";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import type { DoctorReport, LibraryReport } from "../../src/cli/doctor.ts";
import { doctor, examine, formatReport } from "../../src/cli/doctor.ts";
import type { Environment } from "../../src/runtime/env.ts";
import type { EnvName } from "../../src/runtime/variables.ts";
import { environmentFrom } from "../../src/runtime/env.ts";
import { platform, runtime } from "../../src/runtime/processes.ts";
import { elfFile } from "../support/elf_file.ts";
import { temporaryDirectory } from "../support/temporary.ts";

function environment(values: Partial<Record<EnvName, string>> = {}): Environment {
  return environmentFrom((name) => values[name]);
}

function library(report: DoctorReport, name: string): LibraryReport {
  const found = report.libraries.find((one) => one.name === name);
  assert.ok(found !== undefined, `no report of ${name}`);
  return found;
}

async function run(json: boolean, values: Partial<Record<EnvName, string>>): Promise<{ code: number; text: string }> {
  let text = "";
  const code = await doctor({ json, width: 200 }, (piece) => {
    text += piece;
  }, environment(values));
  return { code, text };
}

describe("doctor()", () => {
  it("reports the machine", async () => {
    const report = await examine(environment());
    assert.deepEqual(report.runtime, runtime());
    assert.equal(report.platform.os, platform().os);
    assert.ok(report.cores >= 1);
    const { ofOneRank, ofEachOfTwo } = report.threads;
    assert.deepEqual([ofOneRank, ofEachOfTwo], [report.cores, Math.max(1, Math.floor(report.cores / 2))]);
    const words = `threads        ${ofOneRank} with one rank, ${ofEachOfTwo} each with two; --threads overrides\n`;
    assert.ok((await run(false, {})).text.includes(words));
    if (platform().os !== "linux") return;
    assert.equal(library(report, "libc").state, "loaded");
    assert.ok(report.memory !== null && report.memory.availableBytes <= report.memory.totalBytes);
    assert.ok(report.sharedMemory !== null && report.sharedMemory.totalBytes > 0);
    assert.match(report.sharedMemory.remedy, /--shm-size/);
    assert.equal(typeof report.cpu?.features[platform().arch === "arm64" ? "bf16" : "avx512_bf16"], "boolean");
  });

  it("says which native kernels run here, or why none do", async () => {
    const { native, cpu } = await examine(environment());
    const { os, arch } = platform();
    const runs = os === "linux" && cpu?.features[arch === "arm64" ? "asimd" : "avx2"] === true;
    const { text } = await run(false, {});
    if (runs && "level" in native) {
      const hasWide = cpu.features["avx512f"] === true;
      const x86 = hasWide ? /^x86-64-v[34] / : /^x86-64-v3 \(AVX2\)$/;
      assert.match(native.level, arch === "arm64" ? /^aarch64 \(NEON\)$/ : x86);
      assert.ok(text.includes(`cpu math       native: ${native.level}, ${native.path}\n`));
    } else {
      assert.ok("obstacle" in native && !runs);
      assert.match(text, /^cpu math {7}wasm-relaxed, as there is no native: /m);
    }
  });

  it("says which kernel modules are damaged or missing", () => {
    using folder = temporaryDirectory();
    const root = fileURLToPath(new URL("../../", import.meta.url));
    for (const part of ["src", "wasm/mod.ts", "wasm/native.ts", "wasm/digests.ts", "wasm/pkg", "package.json"]) {
      cpSync(`${root}${part}`, folder.file(part), { recursive: true });
    }
    symlinkSync(`${root}node_modules`, folder.file("node_modules"));
    const problems = (): readonly string[] => {
      const flags = process.versions["bun"] === undefined ? ["run", "-A"] : ["run"];
      const args = [...flags, folder.file("src/cli/main.ts"), "doctor", "--json"];
      const { stdout, stderr } = spawnSync(process.execPath, args, { cwd: folder.path, encoding: "utf8" });
      assert.notEqual(stdout, "", stderr);
      const report: DoctorReport = JSON.parse(stdout);
      return report.problems.filter((problem) => problem.startsWith("WASM kernels: "));
    };
    assert.deepEqual(problems(), []);
    rmSync(folder.file("wasm/pkg/strict.wasm"));
    appendFileSync(folder.file("wasm/pkg/relaxed.wasm"), "more");
    const [missing = "", damaged = "", ...others] = problems();
    assert.deepEqual(others, []);
    assert.match(missing, /^WASM kernels: Cannot open '.*\/wasm\/pkg\/strict\.wasm': it is not there; the package /);
    assert.match(
      damaged,
      /^WASM kernels: Cannot open '.*\/relaxed\.wasm': its SHA-256 is .*; install the package anew$/,
    );
  });

  it("says what computes where there are no native kernels", async () => {
    const report = { ...await examine(environment()), native: { obstacle: "it lacks avx2" } };
    assert.match(formatReport(report, 200), /^cpu math {7}wasm-relaxed, as there is no native: it lacks avx2$/m);
  });

  it("prints one JSON object that holds the report", async () => {
    const { code, text } = await run(true, {});
    assert.equal(text.trimEnd().split("\n").length, 1);
    const parsed: DoctorReport = JSON.parse(text);
    assert.deepEqual(parsed.libraries.map(({ name }) => name), [
      "libc",
      "CUDA driver",
      "CUDA runtime",
      "NVRTC",
      "cuBLASLt",
      "cuDNN",
      "NCCL",
      "MPI",
    ]);
    assert.equal(code, parsed.problems.length === 0 ? 0 : 1);
  });

  it("says what a missing library would give and how to install it", async () => {
    const path = "/nonexistent/libnvrtc.so.13";
    const { code, text } = await run(false, { FULLYSHARD_NVRTC_LIBRARY: path, FULLYSHARD_MPI_LIBRARY: path });
    assert.equal(code, 0, "an optional library that is missing is no problem");
    assert.match(text, /^NVRTC +missing \(1 path tried\)\n +would give: compilation of .*\n +Install it with 'pip/m);
    assert.match(text, /pip install nvidia-cuda-nvrtc'/);
    assert.match(
      text,
      /^MPI +missing .*\n +would give: ranks of several hosts on the CPU\n +It comes with its launcher/m,
    );
    assert.match(text, /^No problems\.$/m);
  });

  it("lists what would help, then this machine and what is used, at words within the width", async () => {
    const path = "/nonexistent/libnvrtc.so.13";
    let text = "";
    const values = environment({ FULLYSHARD_NVRTC_LIBRARY: path, FULLYSHARD_MPI_LIBRARY: path });
    await doctor({ json: false, width: 60 }, (piece) => void (text += piece), values);
    const order = [
      "Not installed (optional):",
      "NVRTC",
      "MPI",
      "runtime",
      "Used here:",
      "libc",
    ];
    const places = order.map((word) => text.search(new RegExp(`^${word}`, "m")));
    assert.ok(places.every((place, index) => place >= 0 && place > (places[index - 1] ?? -1)), text);
    for (const line of text.split("\n")) assert.ok(line.length <= 60, line);
    assert.match(
      text,
      /^NVRTC +missing \(1 path tried\)\n {15}would give: compilation of the GPU kernels at\n {15}run time/m,
    );
  });

  it("tells a broken library from a missing one", async () => {
    using directory = temporaryDirectory();
    const path = `${directory.path}/libnvrtc.so.13`;
    writeFileSync(path, "text ".repeat(20));
    const values = { FULLYSHARD_NVRTC_LIBRARY: path, FULLYSHARD_NCCL_LIBRARY: path };
    const report = await examine(environment(values));
    for (const name of ["NVRTC", "NCCL"]) {
      const { state, broken } = library(report, name);
      assert.equal(state, "broken");
      assert.deepEqual(broken, [{ path, reason: "invalid ELF header" }]);
    }
    const { code, text } = await run(false, values);
    assert.equal(code, 1);
    assert.match(text, /^NVRTC +broken/m);
    assert.match(text, /^Problems \(2\):\n {2}NVRTC: .*libnvrtc\.so\.13: invalid ELF header/m);
  });

  it("names the library that another one needs, as the dynamic linker does", async () => {
    using directory = temporaryDirectory();
    const path = directory.file("libneedy.so");
    writeFileSync(path, elfFile(["libnot-there.so.1"]));
    const values = { FULLYSHARD_NVRTC_LIBRARY: path };
    const { state, broken } = library(await examine(environment(values)), "NVRTC");
    const reason = "libnot-there.so.1: cannot open shared object file: No such file or directory";
    assert.deepEqual({ state, broken }, { state: "broken", broken: [{ path, reason }] });
    const { text } = await run(false, values);
    assert.match(text, /^NVRTC +broken .*\n +.*libneedy\.so: libnot-there\.so\.1: cannot open/m);
  });

  it("finds what a Python environment brings, and what it does not open", async () => {
    using directory = temporaryDirectory();
    const place = `${directory.path}/lib/python3.12/site-packages/nvidia/cu13/lib`;
    mkdirSync(place, { recursive: true });
    writeFileSync(`${place}/libcublasLt.so.13`, "");
    writeFileSync(directory.file("libmpi.so.40"), "");
    const report = await examine(environment({ VIRTUAL_ENV: directory.path, LD_LIBRARY_PATH: directory.path }));
    const { broken } = library(report, "cuBLASLt");
    assert.deepEqual(broken, [{ path: `${place}/libcublasLt.so.13`, reason: "file too short" }]);
    const { state, path } = library(report, "MPI");
    assert.deepEqual([state, path], ["present", directory.file("libmpi.so.40")]);
    assert.match(formatReport(report, 200), /^MPI +present, .*libmpi\.so\.40$/m);
  });
});
