/**
 * The committed kernel modules: that their exports are those of the table of kernels, that they carry no trace of the machine
 * they were built on, and that the door refuses what does not fit.
 *
 * @module
 */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { test } from "node:test";
import { pathToFileURL } from "node:url";
import { devicePtr } from "../../src/device/device.ts";
import { CONSTANTS, type KernelEntry, type KernelTable } from "../../src/device/kernels/signature.ts";
import { KERNELS } from "../../src/device/kernels/table.ts";
import { exportName } from "../../src/device/kernels/packing.ts";
import { Pauses } from "../../src/device/pauses.ts";
import { openWasmDevice } from "../../src/device/wasm/device.ts";
import { wasmKernels } from "../../src/device/wasm/kernels.ts";
import { float32 } from "../../src/dtype.ts";
import { FileError, InternalError } from "../../src/errors.ts";
import { MODULE_DIGESTS } from "../../wasm/digests.ts";
import { instantiateKernels, loadKernelModule } from "../../wasm/mod.ts";
import type { KernelVariant } from "../../wasm/mod.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { TRACES } from "../support/traces.ts";
import { exportedSignatures, type WasmType } from "../support/wasm_binary.ts";

const VARIANTS: readonly KernelVariant[] = ["strict", "relaxed"];
async function binary(variant: KernelVariant): Promise<Uint8Array<ArrayBuffer>> {
  return new Uint8Array(await readFile(new URL(`../../wasm/pkg/${variant}.wasm`, import.meta.url)));
}

/** Exports that are no kernels. */
const OTHERS: readonly (readonly [string, readonly WasmType[], readonly WasmType[]])[] = [
  ["heap_base", [], ["i32"]],
  ["list_area", [], ["i32"]],
  ...["portable_exp", "portable_log", "portable_sin", "portable_cos"].map((name) => [name, ["f64"], ["f64"]] as const),
  ["portable_pow", ["f64", "f64"], ["f64"]],
];

/** The parameters of a kernel's export. */
function typesOf({ values, arrays, faults }: KernelEntry): readonly WasmType[] {
  const types = Object.values(values).flatMap((kind): WasmType[] =>
    kind === "f32" || kind === "f64" ? [kind] : kind === "shape" ? ["i32", "i32"] : ["i32"]
  );
  const addresses = Object.values(arrays).flatMap(({ list }): WasmType[] => list ? ["i32", "i32"] : ["i32"]);
  return [...types, ...addresses, ...faults ? ["i32" as const] : []];
}

for (const variant of VARIANTS) {
  test(`${variant}.wasm exports the kernels of the table, with their parameters, and nothing else`, async () => {
    const table: KernelTable = KERNELS;
    const kernels = Object.entries(table).map(([name, entry]) => [exportName(name), typesOf(entry), []] as const);
    const expected = [...kernels, ...OTHERS].map(([name, parameters, results]) =>
      [name, { parameters, results }] as const
    );
    const found = exportedSignatures(await binary(variant));
    assert.deepEqual(new Map([...found].sort()), new Map(expected.toSorted()));
  });

  test(`${variant}.wasm holds no path, no registry and no names`, async () => {
    const bytes = await binary(variant);
    const text = new TextDecoder("latin1").decode(bytes);
    for (const trace of TRACES) assert.ok(!text.includes(trace), `${variant}.wasm holds '${trace}'`);
    assert.ok(!text.includes("panicked"), "panic messages are linked in");
    assert.ok(bytes.length < 480_000, `${bytes.length} bytes slow the start down`);
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

test("loadKernelModule() opens a module if it is what the sources were built to, and nothing else", async () => {
  for (const variant of VARIANTS) {
    const url = new URL(`../../wasm/pkg/${variant}.wasm`, import.meta.url);
    assert.ok(await loadKernelModule(variant, url) instanceof WebAssembly.Module);
    const others = VARIANTS.filter((one) => one !== variant);
    for (const other of others) await assert.rejects(loadKernelModule(other, url), isOther(url.pathname, other));
    using directory = temporaryDirectory();
    const torn = directory.file("torn.wasm");
    writeFileSync(torn, (await binary(variant)).subarray(0, 100_000));
    await assert.rejects(loadKernelModule(variant, pathToFileURL(torn)), isOther(torn, variant));
    const pipe = directory.file("pipe.wasm");
    assert.equal(spawnSync("mkfifo", [pipe]).status, 0);
    for (
      const [name, found] of [["pipe.wasm", "not a regular file"], ["", "not a regular file"], ["no.wasm", "not there"]]
    ) {
      await assert.rejects(loadKernelModule(variant, pathToFileURL(directory.file(name ?? ""))), (error) => {
        assert.ok(error instanceof FileError);
        assert.ok(error.message.endsWith(`${name}': it is ${found}; the package is incomplete, install it anew`));
        return true;
      });
    }
  }
});

/** True if an error says that a module is not the expected one. */
function isOther(path: string, variant: KernelVariant): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof FileError);
    assert.ok(error.message.startsWith(`Cannot open '${path}': its SHA-256 is `), error.message);
    const expected = `, that of this version's module '${variant}' ${
      MODULE_DIGESTS[variant]
    }; install the package anew`;
    assert.ok(error.message.endsWith(expected), error.message);
    return true;
  };
}

test("loadKernelModule() compares what a server gives, too", async () => {
  const server = createServer(async ({ url }, response) => {
    if (url === "/none.wasm") return response.writeHead(404).end();
    response.writeHead(200).end(await binary(url === "/strict.wasm" ? "strict" : "relaxed"));
  });
  await new Promise<void>((resolve) => void server.listen(0, "127.0.0.1", resolve));
  try {
    const address = server.address();
    assert.ok(address !== null && typeof address === "object");
    const at = (name: string): URL => new URL(`http://127.0.0.1:${address.port}/${name}.wasm`);
    assert.ok(await loadKernelModule("strict", at("strict")) instanceof WebAssembly.Module);
    await assert.rejects(loadKernelModule("strict", at("other")), isOther(at("other").href, "strict"));
    await assert.rejects(loadKernelModule("strict", at("none")), {
      name: "FileError",
      message: `Cannot open '${at("none").href}': its server answers with status 404; the package is incomplete, ` +
        "install it anew",
    });
    await assert.rejects(loadKernelModule("strict", new URL("http://127.0.0.1:1/strict.wasm")), {
      name: "FileError",
      message:
        /^Cannot open 'http:\/\/127\.0\.0\.1:1\/strict\.wasm': it cannot be read \(.+\); install the package anew$/,
    });
  } finally {
    server.close();
    server.closeAllConnections();
  }
});

test("instantiateKernels() takes any memory that is large enough, growable or not", async () => {
  const module = await loadKernelModule("strict");
  const needed = instantiateKernels(module, new WebAssembly.Memory({ initial: 512 })).heapBase;
  const pages = Math.ceil(needed / 65536);
  for (const maximum of [pages, 65536]) {
    const memory = new WebAssembly.Memory({ initial: pages, maximum });
    assert.equal(instantiateKernels(module, memory).heapBase, needed);
    assert.equal(memory.buffer.byteLength, pages * 65536, "kernels never grow the memory");
  }
  assert.equal(
    instantiateKernels(module, new WebAssembly.Memory({ initial: 65536, maximum: 65536 })).heapBase,
    needed,
  );
  assert.throws(() => instantiateKernels(module, new WebAssembly.Memory({ initial: pages - 1 })), InternalError);
});

test("a module without an export is refused by its name", async () => {
  const empty = new WebAssembly.Module(Uint8Array.of(0, 0x61, 0x73, 0x6d, 1, 0, 0, 0));
  assert.throws(() => instantiateKernels(empty, new WebAssembly.Memory({ initial: 512 })), /lacks 'heap_base'/);
  const module = instantiateKernels(await loadKernelModule("strict"), new WebAssembly.Memory({ initial: 512 }));
  assert.throws(() => module.function("no_such_kernel"), /lacks 'no_such_kernel'; rebuild it/);
});

test("two instances over two memories do not touch each other", async () => {
  const module = await loadKernelModule("strict");
  const [a, b] = [0, 1].map(() => {
    const memory = new WebAssembly.Memory({ initial: 128, maximum: 128 });
    const instance = instantiateKernels(module, memory);
    const dst = devicePtr(instance.heapBase + 256);
    const { fill } = wasmKernels(instance, memory, devicePtr(instance.heapBase), new Pauses());
    const values = new Float32Array(memory.buffer, dst, 8);
    return { fill: (value: number) => fill({ dtype: float32, n: 8, value, dst }), values };
  });
  assert.ok(a !== undefined && b !== undefined);
  a.fill(3);
  assert.ok(b.values.every((v) => v === 0));
  b.fill(4);
  assert.ok(a.values.every((v) => v === 3));
});

test("an optimizer's record beyond its arrays is a trap, before anything is written", async () => {
  const device = await openWasmDevice({ memoryBytes: 2 ** 24 });
  const [n, recordBytes] = [8, CONSTANTS.RECORD_BYTES];
  const place = (bytes: number) => device.allocator.allocate(bytes, "test");
  const [param, grad, records, steps] = [place(n * 4), place(n * 4), place(recordBytes), place(4)];
  const update = (start: number, end: number): void => {
    const record = new Uint8Array(recordBytes);
    new BigUint64Array(record.buffer).set([start, end, 0, 1].map(BigInt));
    new Float64Array(record.buffer, 32).set([1]); // the learning rate
    device.copyIn(records, record);
    device.kernels.sgd({ n, numStates: 0, numRecords: 1, param, grad, records, steps });
  };
  device.kernels.fill({ dtype: float32, n, value: 1, dst: param });
  device.kernels.fill({ dtype: float32, n, value: 1, dst: grad });
  for (const [start, end] of [[0, n + 1], [n + 1, n + 1], [3, 2], [2 ** 32, 2 ** 32 + 4]] as const) {
    assert.throws(() => update(start, end), WebAssembly.RuntimeError);
  }
  update(4, n);
  const values = new Float32Array(n);
  device.copyOut(new Uint8Array(values.buffer), param);
  assert.deepEqual([...values], [1, 1, 1, 1, 0, 0, 0, 0]);
  device.dispose();
});
