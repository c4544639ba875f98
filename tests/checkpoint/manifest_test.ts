/**
 * Manifests whose checksum is right and whose contents make no sense: each is refused with what was expected.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { type Manifest, renderManifest } from "../../src/checkpoint/sharded/manifest.ts";
import { parseManifest } from "../../src/checkpoint/sharded/parse_manifest.ts";
import { CheckpointError } from "../../src/errors.ts";
import { crc32, crc32Text } from "../../src/runtime/checksum.ts";

const GOOD: Manifest = {
  step: 3,
  worldSize: 2,
  environment: { cpuMath: "wasm" },
  files: new Map([["a.safetensors", { byteLength: 8, crc32: "00000000" }]]),
  model: new Map([["w", {
    shape: [2, 2],
    shares: [{ file: "a.safetensors", box: { offsets: [0, 0], sizes: [2, 2] } }],
  }]]),
  optimizer: {
    tensors: new Map(),
    stepsTaken: 3,
    steps: new Map([["w", 3]]),
    groups: [{ parameters: ["w"], settings: { learningRate: 0.1 } }],
  },
  state: { loader: { cursor: 6 } },
};

/** The bytes of the good manifest with a change, and the checksum that they then have. */
function changed(from: string, to: string): Uint8Array {
  const { crc32: _, ...body } = JSON.parse(renderManifest(GOOD).replace(from, to));
  const checksum = crc32Text(crc32(new TextEncoder().encode(JSON.stringify(body))));
  return new TextEncoder().encode(JSON.stringify({ ...body, crc32: checksum }));
}

test("parseManifest() reads what renderManifest() writes", () => {
  assert.deepEqual(parseManifest(new TextEncoder().encode(renderManifest(GOOD)), "m"), GOOD);
  const none = { ...GOOD, optimizer: undefined };
  assert.deepEqual(parseManifest(new TextEncoder().encode(renderManifest(none)), "m"), none);
});

for (
  const [from, to, message] of [
    ['"step":3', '"step":-1', /^m: step must be a number >= 0, got -1$/],
    ['"step":3', '"step":1.5', /step must be an integer, got 1.5/],
    ['"worldSize":2', '"worldSize":0', /worldSize must be a number > 0, got 0/],
    ['"byteLength":8', '"byteLength":"8"', /files\.a\.safetensors\.byteLength must be a number, got '8'/],
    ['"files":{"a.', '"files":{"../a.', /files must lie in the checkpoint, got "\.\.\/a\.safetensors"/],
    ['"state":{"loader":{"cursor":6}}', '"state":[]', /state must be an object, got \[\]/],
    ['"stepsTaken":3', '"taken":3', /optimizer\.stepsTaken must be a number, got nothing/],
    ['[["w",3]]', '[["w"]]', /optimizer\.steps\.0 must be a list of >= 2 items, got \["w"\]/],
    [
      '["a.safetensors",[0,0]',
      '["b.safetensors",[0,0]',
      /tensor 'w': Expected a file and a box of \[2, 2\], got \["b\./,
    ],
    ["[0,0],[2,2]", "[1,0],[2,2]", /tensor 'w': Expected a file and a box of \[2, 2\]/],
    ["[0,0],[2,2]", "[0],[2]", /tensor 'w': Expected a file and a box of \[2, 2\]/],
    ["[0,0],[2,2]", "[0,0],[1,2]", /tensor 'w': Expected boxes of 4 elements, got 2/],
  ] as const
) {
  test(`parseManifest() refuses ${to} for ${from}`, () => {
    assert.throws(() => parseManifest(changed(from, to), "m"), (error) => {
      assert.ok(error instanceof CheckpointError);
      assert.match(error.message, message);
      return true;
    });
  });
}
