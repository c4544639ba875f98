/**
 * Times kernels on one core: `kernels.ts <math>-<case>…` prints the microseconds of the best of many calls of each, and
 * what a call calculates and moves. Rows and columns are those of a step of the 7.9 M Llama.
 *
 * @module
 */
import process from "node:process";
import type { Device, DevicePtr, Kernels } from "fullyshard/device";
import { float32 } from "fullyshard";
import { WORK } from "../kernels.ts";
import { bestOf, randomArray, timeCases } from "./timing.ts";
import { workOf } from "./work.ts";

const dtype = float32;
const [rows, cols, inner, vocab, n] = [1024, 256, 688, 4096, 2 ** 20];

/** Bytes of one record of an optimizer: of which elements, and eight numbers. */
function record(end: number): Uint8Array {
  const bytes = new Uint8Array(56);
  new Uint32Array(bytes.buffer).set([0, end, 0, 1]);
  new Float64Array(bytes.buffer, 16).set([1e-3, 0.01, 0.9, 0.999, 1e-8]);
  return bytes;
}

/** Device memory with what is given, or of random numbers. */
class Arrays {
  readonly #device: Device;
  constructor(device: Device) {
    this.#device = device;
  }
  random(n: number): DevicePtr {
    return randomArray(this.#device, n);
  }
  of(values: Uint8Array): DevicePtr {
    const dst = this.#device.allocator.allocate(values.byteLength, "bench");
    this.#device.copyIn(dst, values);
    return dst;
  }
}

type Prepare = (arrays: Arrays, kernels: Kernels) => () => void;

const CASES: Readonly<Record<string, Prepare>> = {
  add: (arrays, { binary }) => {
    const [a, b, dst] = [arrays.random(n), arrays.random(n), arrays.random(n)];
    const args = { dtype, op: "add", shape: [n], aStrides: [1], bStrides: [1], dst, a, b } as const;
    return () => binary(args);
  },
  gelu: (arrays, { unary }) => {
    const args = { dtype, op: "gelu", n, p0: 0, p1: 0, dst: arrays.random(n), src: arrays.random(n) } as const;
    return () => unary(args);
  },
  softmax: (arrays, { softmax }) => {
    const args = { dtype, log: false, rows, cols, y: arrays.random(rows * cols), x: arrays.random(rows * cols) };
    return () => softmax(args);
  },
  "rms-norm": (arrays, { rmsNorm }) => {
    const [y, x] = [arrays.random(rows * cols), arrays.random(rows * cols)];
    const args = {
      dtype,
      rows,
      cols,
      eps: 1e-6,
      zeroCentered: false,
      y,
      rstd: arrays.random(rows),
      x,
      w: arrays.random(cols),
    };
    return () => rmsNorm(args);
  },
  "rms-norm-backward": (arrays, { rmsNormBackward }) => {
    const [dx, dy, x] = [arrays.random(rows * cols), arrays.random(rows * cols), arrays.random(rows * cols)];
    const [dw, w, rstd] = [arrays.random(cols), arrays.random(cols), arrays.random(rows)];
    return () => rmsNormBackward({ dtype, rows, cols, zeroCentered: false, dx, dw, dy, x, w, rstd });
  },
  swiglu: (arrays, { swiglu }) => {
    const length = rows * inner;
    const args = { dtype, n: length, y: arrays.random(length), gate: arrays.random(length), up: arrays.random(length) };
    return () => swiglu(args);
  },
  "swiglu-backward": (arrays, { swigluBackward }) => {
    const length = rows * inner;
    const [dgate, dup, dy] = [arrays.random(length), arrays.random(length), arrays.random(length)];
    const args = { dtype, n: length, dgate, dup, dy, gate: arrays.random(length), up: arrays.random(length) };
    return () => swigluBackward(args);
  },
  "cross-entropy": (arrays, { crossEntropy }) => {
    const labels = arrays.of(new Uint8Array(Int32Array.from({ length: rows }, (_, i) => i * 7919 % vocab).buffer));
    const [logits, dlogits, losses] = [arrays.random(rows * vocab), arrays.random(rows * vocab), arrays.random(rows)];
    const sizes = { rows, cols: vocab, ignoreIndex: -100, firstRow: 0, labelSmoothing: 0, zLoss: 0 };
    return () => crossEntropy({ dtype, ...sizes, losses, dlogits, logits, labels });
  },
  adamw: (arrays, { adamw }) => {
    const [param, grad, expAvg, expAvgSq] = [arrays.random(n), arrays.random(n), arrays.random(n), arrays.random(n)];
    const [records, steps] = [arrays.of(record(n)), arrays.of(new Uint8Array(4))];
    return () => adamw({ n, numStates: n, numRecords: 1, param, grad, expAvg, expAvgSq, records, steps });
  },
};

await timeCases((device, name) => {
  const prepare = CASES[name];
  if (prepare === undefined) throw new Error(`no case '${name}'`);
  const arrays = new Arrays(device);
  const { flops, bytes } = workOf((kernels) => prepare(arrays, kernels)());
  process.stdout.write(`${WORK}${name} ${flops} ${bytes}\n`);
  return bestOf(prepare(arrays, device.kernels)) * 1000;
});
