/**
 * The committed kernel modules: what they import and export, that they carry no trace of the machine they were built
 * on, and that the door refuses what does not fit.
 *
 * @module
 */
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { InternalError } from "../../src/errors.ts";
import { instantiateKernels, loadKernelModule } from "../../wasm/mod.ts";
import type { KernelVariant } from "../../wasm/mod.ts";

const VARIANTS: readonly KernelVariant[] = ["strict", "relaxed"];
const TRACES = [
  "/root",
  "/home",
  "/Users",
  "/tmp",
  "/work",
  ".cargo",
  ".rustup",
  "rustc/",
  "crates",
  "registry",
];

async function binary(variant: KernelVariant): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await readFile(new URL(`../../wasm/pkg/${variant}.wasm`, import.meta.url)));
}

for (const variant of VARIANTS) {
  test(`${variant}.wasm holds no path, no registry and no names`, async () => {
    const bytes = await binary(variant);
    const text = new TextDecoder("latin1").decode(bytes);
    for (const trace of TRACES) assert.ok(!text.includes(trace), `${variant}.wasm holds '${trace}'`);
    assert.ok(!text.includes("panicked"), "panic messages are linked in");
    assert.ok(bytes.length < 300_000, `${bytes.length} bytes slow the start down`);
    const module = await loadKernelModule(variant);
    assert.equal(WebAssembly.Module.customSections(module, "name").length, 0);
  });

  test(`${variant}.wasm imports a memory and nothing else`, async () => {
    const module = await loadKernelModule(variant);
    const imports = WebAssembly.Module.imports(module).map(({ kind, name }) => `${kind} ${name}`);
    assert.deepEqual(imports, ["memory memory"]);
    const exports = WebAssembly.Module.exports(module);
    assert.ok(exports.every(({ kind, name }) => kind === "function" && name !== "memory"));
  });
}

test("loadKernelModule() takes a URL or bytes and names what it cannot read", async () => {
  const bytes = await binary("strict");
  assert.ok(await loadKernelModule("strict", bytes) instanceof WebAssembly.Module);
  const url = new URL("../../wasm/pkg/relaxed.wasm", import.meta.url);
  assert.ok(await loadKernelModule("strict", url) instanceof WebAssembly.Module);
  await assert.rejects(loadKernelModule("strict", new URL("./nowhere.wasm", import.meta.url)), /nowhere\.wasm/);
});

test("instantiateKernels() takes any memory that is large enough, growable or not", async () => {
  const module = await loadKernelModule("strict");
  const needed = instantiateKernels(module, new WebAssembly.Memory({ initial: 512 })).heap_base() >>> 0;
  const pages = Math.ceil(needed / 65536);
  for (const maximum of [pages, 65536]) {
    const memory = new WebAssembly.Memory({ initial: pages, maximum });
    assert.equal(instantiateKernels(module, memory).heap_base() >>> 0, needed);
    assert.equal(memory.buffer.byteLength, pages * 65536, "kernels never grow the memory");
  }
  assert.equal(
    instantiateKernels(module, new WebAssembly.Memory({ initial: 65536, maximum: 65536 })).heap_base(),
    needed,
  );
  assert.throws(() => instantiateKernels(module, new WebAssembly.Memory({ initial: pages - 1 })), InternalError);
});

test("instantiateKernels() names the exports that another module lacks", () => {
  const empty = new WebAssembly.Module(Uint8Array.of(0, 0x61, 0x73, 0x6d, 1, 0, 0, 0));
  assert.throws(() => instantiateKernels(empty, new WebAssembly.Memory({ initial: 512 })), /lacks heap_base, .*gemm/);
});

test("two instances over two memories do not touch each other", async () => {
  const module = await loadKernelModule("strict");
  const memories = [0, 1].map(() => new WebAssembly.Memory({ initial: 128, maximum: 128 }));
  const [a, b] = memories.map((memory) => instantiateKernels(module, memory));
  assert.ok(a !== undefined && b !== undefined && memories[1] !== undefined);
  const at = a.heap_base();
  a.fill(0, at, 8, 3);
  assert.ok(new Float32Array(memories[1].buffer, at, 8).every((v) => v === 0));
  b.fill(0, at, 8, 4);
  assert.ok(memories[0] !== undefined && new Float32Array(memories[0].buffer, at, 8).every((v) => v === 3));
});
