/**
 * The suite of devices finds what a kernel does wrong: each fault here is one that a kernel might have.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { type Device, devicePtr } from "../../src/device/device.ts";
import type { ArgsOf, Kernels } from "../../src/device/kernels/table.ts";
import { openDevice } from "../../src/device/registry.ts";
import { float32, int32 } from "../../src/dtype.ts";
import { Bed } from "../conformance/kernels/bed.ts";
import { type AnyCase, pick } from "../conformance/kernels/case.ts";

const device = await openDevice("cpu", { memoryBytes: 2 ** 25 });
const { kernels, status, scalars, streams, allocator, math, name, mathName, detail, offload, traits } = device;

/** The device with some kernels replaced. */
function withKernels(changed: Partial<Kernels>): Device {
  return {
    ...{ name, mathName, detail, allocator, status, scalars, streams, math, offload, traits },
    kernels: { ...kernels, ...changed },
    copyIn: (dst, src) => device.copyIn(dst, src),
    copyOut: (dst, src) => device.copyOut(dst, src),
    copy: (dst, src, byteLength) => device.copy(dst, src, byteLength),
    scratchBytes: (kernel, args) => device.scratchBytes(kernel, args),
    synchronize: () => {},
    dispose: () => {},
  };
}

const write = (at: number, value: number): void =>
  device.copyIn(devicePtr(at), new Uint8Array(Float32Array.of(value).buffer));

const scaling: AnyCase = {
  args: { dtype: float32, n: 5, factor: 2 },
  expect: (before) => ({ dst: { values: before("src").map((value) => value * 2) } }),
};
const product: AnyCase = {
  args: {
    ...{ dtype: float32, outDtype: float32, transA: false, transB: false, m: 2, n: 2, k: 1, alpha: 1, beta: 0 },
    ...{ lda: 1, ldb: 2, ldc: 3, batch: 1, strideA: 0, strideB: 0, strideC: 0 },
  },
  expect: (before) => {
    const [a, b] = [before("a"), before("b")];
    const at = (i: number, j: number): number => Math.fround(pick(a, i) * pick(b, j));
    return { c: { values: [at(0, 0), at(0, 1), undefined, at(1, 0), at(1, 1)] } };
  },
};

let calls = 0;
const FAULTS: readonly (readonly [string, (args: ArgsOf<"scale">) => void, RegExp])[] = [
  ["a wrong value", ({ dst }) => write(dst, 9), /dst: element 0 is 9/],
  ["a byte behind the result", ({ dst, n }) => write(dst + 4 * n, 0), /byte 20 of 'dst' \(20\) changed/],
  ["a byte before it", ({ dst }) => write(dst - 4, 0), /byte -4 of 'dst'/],
  ["another input", ({ src, dst }) => src === dst || write(src + 8, 9), /byte \d+ of 'src'/],
  ["other bits the next time", ({ dst }) => calls++ % 2 === 1 && write(dst, 9), /elsewhere: byte 0 of dst is/],
  ["other bits elsewhere", ({ dst }) => dst % 16 === 0 && write(dst, 9), /elsewhere: byte 0 of dst is/],
  ["another result in place", ({ src, dst }) => src === dst && write(dst, 9), /dst over src: byte 0 of dst is/],
  [
    "a fault where there is none",
    () => kernels.embedding({ dtype: float32, n: 1, vocab: 0, cols: 0, y: rubbish, w: rubbish, ids: rubbish }),
    /a fault/,
  ],
];
const rubbish = new Bed(device).put(int32, [-1]);

for (const [what, harm, message] of FAULTS) {
  test(`Bed.run() finds ${what}`, () => {
    const bed = new Bed(withKernels({
      scale: (args) => {
        kernels.scale(args);
        harm(args);
      },
    }));
    assert.throws(() => bed.run("scale", scaling), message);
    status.clear();
  });
}

test("Bed.run() finds a gap that was written, and takes what is right", () => {
  new Bed(device).run("scale", scaling);
  new Bed(device).run("gemm", product);
  const bed = new Bed(withKernels({
    gemm: (args) => {
      kernels.gemm(args);
      write(args.c + 8, 0);
    },
  }));
  assert.throws(() => bed.run("gemm", product), /gap 2 of 'c' changed/);
});

test("Bed.run() needs an expectation of all that is written", () => {
  const bed = new Bed(device);
  assert.throws(() => bed.run("scale", { ...scaling, expect: () => ({}) }), /nothing is expected of 'dst'/);
});
