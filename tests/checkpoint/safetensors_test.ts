/**
 * Safetensors files to and from the disk, and against a file that Python wrote.
 *
 * @module
 */
import assert from "node:assert/strict";
import { readdirSync, readFileSync, truncateSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { decodeToFloat32 } from "../../src/checkpoint/format/float_bytes.ts";
import { openSafetensors, writeSafetensors } from "../../src/checkpoint/format/safetensors.ts";
import type { SafetensorsFile } from "../../src/checkpoint/format/safetensors.ts";
import { renderHeader } from "../../src/checkpoint/format/safetensors_header.ts";
import { bfloat16, float32, float64, int64 } from "../../src/dtype.ts";
import { ArgumentError, CheckpointError, FileError } from "../../src/errors.ts";
import { crc32, crc32Text } from "../../src/runtime/checksum.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const PYTHON = fileURLToPath(new URL("../fixtures/safetensors/python.safetensors", import.meta.url));

async function bytesOf(file: SafetensorsFile, name: string): Promise<Uint8Array> {
  const { byteLength } = file.get(name);
  const bytes = new Uint8Array(byteLength);
  await file.readInto(name, 0, byteLength, bytes);
  return bytes;
}

test("openSafetensors() reads what Python wrote", async () => {
  using file = await openSafetensors(PYTHON);
  // Values that tests/fixtures/safetensors/make.py has written.
  const doubles = [0, -0, 1, -2.5, 3.140625, 65504, 2 ** -14, 2 ** -24, Infinity, -Infinity, NaN, 0.333];
  assert.deepEqual([...file.metadata].sort(), [["format", "pt"], ["note", "é \u2028"]]);
  const table = file.entries.map(({ name, code, dtype, shape }) => [name, code, dtype?.name, shape]);
  assert.deepEqual(table.sort(), [
    ['a "quoted" näme', "F32", "float32", [1]],
    ["bf16", "BF16", "bfloat16", [12, 1]],
    ["bool", "BOOL", undefined, [3]],
    ["empty", "F32", "float32", [0, 8]],
    ["f16", "F16", "float16", [12]],
    ["f32", "F32", "float32", [2, 6]],
    ["f64", "F64", "float64", [3, 4]],
    ["i32", "I32", "int32", [1, 2]],
    ["i64", "I64", "int64", [3]],
    ["scalar", "F32", "float32", []],
    ["u8", "U8", "uint8", [3]],
  ]);
  const floats = async (name: string): Promise<Float32Array> =>
    decodeToFloat32(file.get(name).code, await bytesOf(file, name));
  assert.deepEqual(await floats("f64"), Float32Array.from(doubles));
  assert.deepEqual(await floats("f32"), Float32Array.from(doubles));
  assert.deepEqual(await floats("f16"), Float32Array.from([...doubles.slice(0, 11), 0.3330078125]));
  // 3.140625 and 65504 take more than bfloat16's eight bits; torch rounds them to nearest-even.
  assert.deepEqual(
    await floats("bf16"),
    Float32Array.from([...doubles.slice(0, 4), 3.140625, 65536, ...doubles.slice(6, 11), 0.33203125]),
  );
  assert.deepEqual(await floats("scalar"), Float32Array.of(4.5));
  assert.deepEqual(
    new BigInt64Array((await bytesOf(file, "i64")).buffer),
    BigInt64Array.of(-(2n ** 62n), -1n, 2n ** 53n + 1n),
  );
  assert.deepEqual(new Int32Array((await bytesOf(file, "i32")).buffer), Int32Array.of(-5, 7));
  assert.deepEqual(await bytesOf(file, "u8"), Uint8Array.of(1, 2, 255));
  assert.deepEqual(await bytesOf(file, "bool"), Uint8Array.of(1, 0, 1));
  assert.equal((await bytesOf(file, "empty")).length, 0);
});

test("writeSafetensors() writes what openSafetensors() reads, piece by piece", async () => {
  using directory = temporaryDirectory();
  const path = directory.file("model.safetensors");
  const tensors = new Map([
    ["10", { dtype: bfloat16, shape: [3, 5], bytes: Uint8Array.from({ length: 30 }, (_, i) => i) }],
    ["2", { dtype: float32, shape: [7], bytes: Uint8Array.from({ length: 28 }, (_, i) => 255 - i) }],
    ["__proto__", { dtype: "BOOL", shape: [], bytes: Uint8Array.of(1) }],
    ["wide", { dtype: int64, shape: [2], bytes: Uint8Array.from({ length: 16 }, (_, i) => i * 3) }],
    ["none", { dtype: float64, shape: [4, 0], bytes: new Uint8Array(0) }],
  ]);
  const specs = [...tensors].map(([name, { dtype, shape }]) => ({ name, dtype, shape }));
  const asked: string[] = [];
  const written = await writeSafetensors(path, specs, { format: "pt", quote: '"' }, function* ({ name }) {
    asked.push(name);
    const bytes = tensors.get(name)?.bytes ?? new Uint8Array(0);
    // One buffer for all pieces: the writer must be done with a piece before it asks for the next.
    const piece = new Uint8Array(4);
    for (let at = 0; at < bytes.length; at += 4) {
      const part = bytes.subarray(at, at + 4);
      piece.set(part);
      yield piece.subarray(0, part.length);
      piece.fill(0xee);
    }
  });
  assert.deepEqual(asked, ["wide", "none", "2", "10", "__proto__"]);
  assert.equal(written.byteLength, readFileSync(path).length);
  assert.equal(written.crc32, crc32Text(crc32(readFileSync(path))));
  assert.deepEqual(readdirSync(directory.path), ["model.safetensors"]);

  using file = await openSafetensors(path);
  assert.deepEqual(file.names, asked);
  assert.deepEqual([...file.metadata], [["format", "pt"], ["quote", '"']]);
  for (const [name, { shape, bytes }] of tensors) {
    const entry = file.get(name);
    assert.deepEqual(entry.shape, shape);
    assert.deepEqual(await bytesOf(file, name), bytes);
    const width = entry.dtype?.byteLength ?? 1;
    assert.equal(entry.byteOffset % width, 0, `${name} starts on a multiple of its element's size`);
  }
});

test("renderHeader() pads to 8 bytes and counts on from the header", () => {
  for (let length = 1; length < 20; length++) {
    const { bytes, dataOffset, fileLength, entries } = renderHeader(
      [{ name: "x".repeat(length), dtype: float32, shape: [3] }],
      {},
    );
    assert.equal(bytes.length % 8, 0);
    assert.equal(dataOffset, bytes.length);
    assert.equal(fileLength, dataOffset + 12);
    assert.equal(entries[0]?.byteOffset, dataOffset);
  }
});

test("SafetensorsFile.readInto() reads any range and refuses others", async () => {
  using file = await openSafetensors(PYTHON);
  const whole = await bytesOf(file, "f32");
  for (const [start, end] of [[0, 0], [0, 1], [5, 23], [47, 48], [48, 48]] as const) {
    const part = new Uint8Array(end - start);
    await file.readInto("f32", start, end, part);
    assert.deepEqual(part, whole.slice(start, end));
  }
  await assert.rejects(file.readInto("f32", 0, 49, new Uint8Array(49)), ArgumentError);
  await assert.rejects(file.readInto("f32", -1, 3, new Uint8Array(4)), ArgumentError);
  await assert.rejects(file.readInto("f32", 8, 4, new Uint8Array(0)), ArgumentError);
  await assert.rejects(file.readInto("f32", 0, 4, new Uint8Array(5)), ArgumentError);
  await assert.rejects(file.readInto("f33", 0, 4, new Uint8Array(4)), (error) => {
    assert.ok(error instanceof CheckpointError);
    assert.equal(error.tensor, "f33");
    return true;
  });
});

test("SafetensorsFile.readInto() reports a file that is cut off after it was opened", async () => {
  using directory = temporaryDirectory();
  const path = directory.write("model.safetensors", readFileSync(PYTHON));
  using file = await openSafetensors(path);
  truncateSync(path, file.get("u8").byteOffset);
  await assert.rejects(file.readInto("u8", 0, 3, new Uint8Array(3)), FileError);
});

test("writeSafetensors() leaves the old file when a tensor has the wrong length or fails", async () => {
  using directory = temporaryDirectory();
  const path = directory.write("model.safetensors", "old");
  const specs = [{ name: "w", dtype: float32, shape: [2] }];
  for (const length of [0, 7, 9, 16]) {
    await assert.rejects(writeSafetensors(path, specs, {}, () => [new Uint8Array(length)]), ArgumentError);
  }
  const broken = writeSafetensors(path, specs, {}, () => {
    throw new RangeError("from the caller");
  });
  await assert.rejects(broken, /from the caller/);
  assert.equal(readFileSync(path, "utf8"), "old");
  assert.deepEqual(readdirSync(directory.path), ["model.safetensors"]);
});

test("writeSafetensors() refuses what the format cannot hold", async () => {
  using directory = temporaryDirectory();
  const path = directory.file("model.safetensors");
  const write = (name: string, dtype: string, shape: readonly number[]): Promise<unknown> =>
    writeSafetensors(path, [{ name: "w", dtype: float32, shape: [0] }, { name, dtype, shape }], {}, () => []);
  await assert.rejects(write("w", "F32", [0]), /must be unique.* got 'w'/);
  await assert.rejects(write("__metadata__", "F32", [0]), ArgumentError);
  await assert.rejects(write("a\0", "F32", [0]), ArgumentError);
  await assert.rejects(write("a", "FLOAT", [0]), /Cannot store tensor 'a' as FLOAT \[0\]/);
  await assert.rejects(write("a", "F32", [-1]), ArgumentError);
  await assert.rejects(write("a", "F32", [2 ** 50, 2 ** 10]), ArgumentError);
  assert.deepEqual(readdirSync(directory.path), []);
});

test("openSafetensors() names a file that is not there", async () => {
  await assert.rejects(openSafetensors("/nowhere/model.safetensors"), FileError);
});
