/**
 * The committed native libraries: that they give the kernels of the table and want nothing, that they carry no trace of the
 * machine they were built on, and that none but they are opened.
 *
 * @module
 */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { exportName } from "../../src/device/kernels/packing.ts";
import { KERNELS } from "../../src/device/kernels/table.ts";
import { lackingFor, leastLevel, levelOf } from "../../src/device/native/processor.ts";
import { FileError, UnsupportedError } from "../../src/errors.ts";
import { LIBRARY_DIGESTS } from "../../wasm/digests.ts";
import { nativeLibraryPath } from "../../wasm/native.ts";
import { dynamicSymbols } from "../support/elf_symbols.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { TRACES } from "../support/traces.ts";

const OTHERS = [
  ...["copy_past_caches", "heap_base", "list_area", "pool_bytes", "pool_helpers", "pool_work", "pool_end"],
  ...["portable_exp", "portable_log", "portable_sin", "portable_cos", "portable_pow"],
];

for (const level of ["v3", "v4", "v4-bf16", "neon"] as const) {
  const file = new URL(`../../wasm/pkg/native-${level}.so`, import.meta.url);

  test(`native-${level}.so gives the kernels of the table, and wants no symbol and no library`, () => {
    const symbols = dynamicSymbols(new Uint8Array(readFileSync(file)));
    assert.deepEqual(symbols.defined, [...Object.keys(KERNELS).map(exportName), ...OTHERS].sort());
    assert.deepEqual(symbols.undefined, []);
    assert.equal(symbols.needed, 0);
  });

  test(`native-${level}.so holds no trace of where it was built`, () => {
    const text = new TextDecoder("latin1").decode(readFileSync(file));
    for (const trace of TRACES) assert.equal(text.includes(trace), false, trace);
  });

  test(`nativeLibraryPath() opens ${level} if it is what the sources say, and nothing else`, async () => {
    assert.equal(await nativeLibraryPath(level), file.pathname);
    using directory = temporaryDirectory();
    const other = `${directory.path}/native.so`;
    const bytes = readFileSync(file);
    bytes[4096] = (bytes[4096] ?? 0) ^ 1;
    writeFileSync(other, bytes);
    await assert.rejects(nativeLibraryPath(level, pathToFileURL(other)), (error) => {
      assert.ok(error instanceof FileError);
      assert.match(error.message, /native\.so': its SHA-256 is [0-9a-f]{64}, that of this version's library/);
      assert.ok(error.message.includes(LIBRARY_DIGESTS[level]));
      return true;
    });
    await assert.rejects(nativeLibraryPath(level, pathToFileURL(`${directory.path}/none.so`)), {
      name: "FileError",
      message: /none\.so': it is not there; the package is incomplete, install it anew$/,
    });
    const pipe = `${directory.path}/pipe.so`;
    assert.equal(spawnSync("mkfifo", [pipe]).status, 0);
    await assert.rejects(
      nativeLibraryPath(level, pathToFileURL(pipe)),
      /pipe\.so': it is not a regular file; the package/,
    );
    const far = new URL("https://jsr.io/native.so");
    await assert.rejects(nativeLibraryPath(level, far), (error) => {
      assert.ok(error instanceof UnsupportedError);
      assert.match(error.message, /https:\/\/jsr\.io\/native\.so, as it is no file: install the package/);
      return true;
    });
  });
}

test("levelOf() takes the best level of which the processor has every flag", () => {
  const v3 = ["avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"];
  const v4 = [...v3, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"];
  const processor = (flags: readonly string[]) => ({ model: undefined, features: new Set(flags) });
  assert.equal(levelOf(processor([...v4, "avx512_bf16"])), "v4-bf16");
  assert.equal(levelOf({ ...processor([...v4, "avx512_bf16"]), vendor: "AuthenticAMD" }), "v4-bf16");
  const intel = { ...processor([...v4, "avx512_bf16"]), vendor: "GenuineIntel" };
  assert.equal(levelOf(intel), "v4", "pairs are slower than widened elements there");
  assert.deepEqual(lackingFor("v4-bf16", intel), [], "who asks for them gets them");
  assert.equal(levelOf(processor(v4)), "v4");
  assert.equal(levelOf(processor(v4.filter((flag) => flag !== "avx512vl"))), "v3");
  assert.equal(levelOf(processor(v3)), "v3");
  assert.equal(levelOf(processor(v3.filter((flag) => flag !== "fma"))), undefined);
  assert.equal(levelOf(processor(v4.slice(v3.length))), undefined, "AVX-512 alone");
  assert.deepEqual(lackingFor("v4", processor(v3)), v4.slice(v3.length));
  assert.equal(levelOf(processor(["fp", "asimd", "evtstrm"])), "neon");
  assert.equal(levelOf(processor(["fp"])), undefined);
  assert.deepEqual(lackingFor("neon", processor(v4)), ["asimd"]);
  assert.deepEqual(["x64", "arm64", "riscv64"].map(leastLevel), ["v3", "neon", undefined]);
});
