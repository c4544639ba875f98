/**
 * Damaged and malicious safetensors files: each is refused with its own message, which names file, tensor, what was
 * expected and what was found.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openSafetensors } from "../../src/checkpoint/format/safetensors.ts";
import { parseHeader } from "../../src/checkpoint/format/safetensors_header.ts";
import { CheckpointError } from "../../src/errors.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const encoder = new TextEncoder();

/** A file of the given header text or bytes, and `data` zero bytes. */
function fileOf(header: string | Uint8Array, data: number, length?: bigint): Uint8Array {
  const json = typeof header === "string" ? encoder.encode(header) : header;
  const bytes = new Uint8Array(8 + json.length + data);
  new DataView(bytes.buffer).setBigUint64(0, length ?? BigInt(json.length), true);
  bytes.set(json, 8);
  return bytes;
}

function tensor(dtype: string, shape: string, offsets: string): string {
  return `{"dtype":${dtype},"shape":${shape},"data_offsets":${offsets}}`;
}

interface Case {
  readonly what: string;
  readonly bytes: Uint8Array;
  readonly message: RegExp;
  readonly tensor?: string;
}

const good = tensor('"F32"', "[2]", "[0,8]");
const one = (dtype: string, shape: string, offsets: string, data: number): Uint8Array =>
  fileOf(`{"w":${tensor(dtype, shape, offsets)}}`, data);

const CASES: readonly Case[] = [
  { what: "an empty file", bytes: new Uint8Array(0), message: /at least 8 bytes, got 0/ },
  { what: "seven bytes", bytes: new Uint8Array(7), message: /at least 8 bytes, got 7/ },
  { what: "a header of no bytes", bytes: fileOf("", 0), message: /at least 2 bytes, got 0/ },
  {
    what: "a header beyond the end",
    bytes: fileOf(`{"w":${good}}`, 8, 500n),
    message: /should have 500 bytes, got 62 .*cut off/,
  },
  {
    what: "a header of 100 MB and a byte",
    bytes: fileOf("{}", 0, 100_000_001n),
    message: /at most 100000000 bytes, got 100000001/,
  },
  {
    what: "a header of 2^64 - 1 bytes",
    bytes: fileOf("{}", 0, 2n ** 64n - 1n),
    message: /at most 100000000 bytes, got 1844674/,
  },
  { what: "a big-endian length", bytes: fileOf(`{"w":${good}}`, 8, 60n << 56n), message: /looks big-endian/ },
  {
    what: "text instead of a header",
    bytes: fileOf("hello   ", 0),
    message: /starts with '\{' \(byte 0x7b\), got byte 0x68/,
  },
  { what: "a blank before the header", bytes: fileOf(" {}", 0), message: /starts with '\{' .* got byte 0x20/ },
  { what: "an array", bytes: fileOf("[]", 0), message: /starts with '\{' .* got byte 0x5b/ },
  { what: "a header that is not JSON", bytes: fileOf('{"w":', 0), message: /must be JSON/ },
  { what: "two headers", bytes: fileOf("{}{}", 0), message: /must be JSON/ },
  {
    what: "a header that is not UTF-8",
    bytes: fileOf(Uint8Array.of(0x7b, 0x22, 0xff, 0x22, 0x7d), 0),
    message: /must be UTF-8/,
  },
  { what: "deep nesting", bytes: fileOf(`{"w":${"[".repeat(1e6)}`, 0), message: /may nest 3 levels deep, got 64/ },
  { what: "a key twice", bytes: fileOf(`{"w":${good},"w":${good}}`, 8), message: /each key once, got "w" twice/ },
  { what: "a key twice, once escaped", bytes: fileOf(`{"w":${good},"\\u0077":${good}}`, 8), message: /got "w" twice/ },
  {
    what: "offsets twice",
    bytes: fileOf(`{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"data_offsets":[0,1]}}`, 1),
    message: /got "data_offsets" twice/,
  },
  {
    what: "a tensor that is a number",
    bytes: fileOf('{"w":1}', 0),
    message: /Expected an object .* got 1/,
    tensor: "w",
  },
  { what: "a tensor that is null", bytes: fileOf('{"w":null}', 0), message: /got null/, tensor: "w" },
  {
    what: "a tensor without shape",
    bytes: fileOf('{"w":{"dtype":"F32","data_offsets":[0,0]}}', 0),
    message: /shape .* got nothing/,
    tensor: "w",
  },
  {
    what: "an unknown key",
    bytes: fileOf('{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"strides":[1]}}', 1),
    message: /only, got "strides"/,
    tensor: "w",
  },
  {
    what: "an unknown dtype",
    bytes: one('"float32"', "[2]", "[0,8]", 8),
    message: /dtype must be one of .*F32.* got "float32"/,
    tensor: "w",
  },
  {
    what: "a dtype that is a number",
    bytes: one("7", "[2]", "[0,8]", 8),
    message: /dtype must be one of .* got 7/,
    tensor: "w",
  },
  {
    what: "a negative dim",
    bytes: one('"F32"', "[-2]", "[0,8]", 8),
    message: /shape must be .* got \[-2\]/,
    tensor: "w",
  },
  { what: "a minus-zero dim", bytes: one('"F32"', "[-0]", "[0,0]", 0), message: /shape must be/, tensor: "w" },
  {
    what: "a broken dim",
    bytes: one('"F32"', "[1.5]", "[0,6]", 6),
    message: /shape must be .* got \[1.5\]/,
    tensor: "w",
  },
  { what: "a dim that is text", bytes: one('"F32"', '["2"]', "[0,8]", 8), message: /shape must be/, tensor: "w" },
  {
    what: "a dim of 2^53",
    bytes: one('"U8"', "[9007199254740993]", "[0,8]", 8),
    message: /shape must be/,
    tensor: "w",
  },
  {
    what: "a shape that overflows",
    bytes: one('"F32"', "[4503599627370496,4096,4096]", "[0,8]", 8),
    message: /whole bytes below 2\^53/,
    tensor: "w",
  },
  {
    what: "a shape that is an object",
    bytes: one('"F32"', "{}", "[0,8]", 8),
    message: /shape must be .* got \{\}/,
    tensor: "w",
  },
  { what: "half a byte", bytes: one('"F4"', "[3]", "[0,1]", 1), message: /whole bytes/, tensor: "w" },
  {
    what: "three offsets",
    bytes: one('"F32"', "[2]", "[0,8,16]", 8),
    message: /two integers .* got \[0,8,16\]/,
    tensor: "w",
  },
  { what: "a broken offset", bytes: one('"F32"', "[2]", "[0.5,8.5]", 9), message: /two integers/, tensor: "w" },
  { what: "a negative offset", bytes: one('"F32"', "[2]", "[-8,0]", 8), message: /two integers/, tensor: "w" },
  {
    what: "an offset of 2^64",
    bytes: one('"F32"', "[2]", "[0,18446744073709551616]", 8),
    message: /two integers/,
    tensor: "w",
  },
  { what: "an offset that is text", bytes: one('"F32"', "[2]", '["0","8"]', 8), message: /two integers/, tensor: "w" },
  {
    what: "falling offsets",
    bytes: one('"F32"', "[2]", "[8,0]", 8),
    message: /must not fall, got \[8, 0\]/,
    tensor: "w",
  },
  {
    what: "fewer bytes than the shape",
    bytes: one('"F32"', "[3]", "[0,8]", 8),
    message: /F32 \[3\] takes 12 bytes, got 8/,
    tensor: "w",
  },
  {
    what: "more bytes than the shape",
    bytes: one('"BF16"', "[2]", "[0,8]", 8),
    message: /BF16 \[2\] takes 4 bytes, got 8/,
    tensor: "w",
  },
  {
    what: "a file that is cut off",
    bytes: one('"F32"', "[2]", "[0,8]", 5),
    message: /reach to byte 8, got 5 .*cut off/,
    tensor: "w",
  },
  { what: "trailing bytes", bytes: one('"F32"', "[2]", "[0,8]", 9), message: /end after 'w' .* 1 trailing byte$/ },
  { what: "data without tensors", bytes: fileOf("{}", 3), message: /end after the header .* 3 trailing bytes/ },
  {
    what: "a hole at the start",
    bytes: one('"F32"', "[2]", "[4,12]", 12),
    message: /no holes, got 4 bytes between the header/,
    tensor: "w",
  },
  {
    what: "a hole between tensors",
    bytes: fileOf(`{"a":${good},"b":${tensor('"F32"', "[2]", "[12,20]")}}`, 20),
    message: /no holes, got 4 bytes between 'a' and it/,
    tensor: "b",
  },
  {
    what: "an overlap",
    bytes: fileOf(`{"b":${tensor('"F32"', "[2]", "[4,12]")},"a":${good}}`, 12),
    message: /overlap of 4 bytes with 'a'/,
    tensor: "b",
  },
  {
    what: "two tensors on the same bytes",
    bytes: fileOf(`{"a":${good},"b":${good}}`, 8),
    message: /overlap of 8 bytes with 'a'/,
    tensor: "b",
  },
  { what: "a NUL in a name", bytes: fileOf(`{"w\\u0000x":${good}}`, 8), message: /must not hold NUL/, tensor: "w\0x" },
  {
    what: "metadata that is an array",
    bytes: fileOf('{"__metadata__":["pt"]}', 0),
    message: /'__metadata__' must be an object of strings, got \["pt"\]/,
  },
  {
    what: "metadata with a number",
    bytes: fileOf('{"__metadata__":{"format":1}}', 0),
    message: /must hold strings, got 1 for "format"/,
  },
];

for (const { what, bytes, message, tensor } of CASES) {
  test(`openSafetensors() refuses ${what}`, async () => {
    using directory = temporaryDirectory();
    const path = directory.write("model.safetensors", bytes);
    await assert.rejects(openSafetensors(path), (error) => {
      assert.ok(error instanceof CheckpointError, String(error));
      assert.match(error.message, message);
      assert.equal(error.file, path);
      assert.ok(error.message.startsWith(path));
      assert.equal(error.tensor, tensor);
      return true;
    });
  });
}

test("parseHeader() refuses every cut of a good file, and every flipped bit or reads the same sizes", () => {
  const bytes = fileOf(`{"a":${good},"b":${tensor('"BF16"', "[2,3]", "[8,20]")}}`, 20);
  for (let length = 0; length < bytes.length; length++) {
    assert.throws(() => parseHeader(bytes.subarray(0, length), length, "f"), CheckpointError);
  }
  for (let bit = 0; bit < (bytes.length - 20) * 8; bit++) {
    const copy = bytes.slice();
    copy[bit >> 3] = (copy[bit >> 3] ?? 0) ^ (1 << (bit & 7));
    try {
      const { entries, dataOffset } = parseHeader(copy, copy.length, "f");
      assert.equal(entries.reduce((sum, { byteLength }) => sum + byteLength, dataOffset), copy.length);
    } catch (error) {
      assert.ok(error instanceof CheckpointError, `bit ${bit}: ${error}`);
    }
  }
});

test("parseHeader() takes names that objects treat apart", () => {
  const empty = tensor('"U8"', "[0]", "[0,0]");
  const names = ["__proto__", "constructor", "1", "0", "", "toString", "__metadata_"];
  const header = names.map((name) => `${JSON.stringify(name)}:${empty}`).join(",");
  const bytes = fileOf(`{${header},"__metadata__":{"__proto__":"x"}}   `, 0);
  const { entries, metadata } = parseHeader(bytes, bytes.length, "f");
  assert.deepEqual(entries.map(({ name }) => name).sort(), [...names].sort());
  assert.equal(metadata.get("__proto__"), "x");
});
