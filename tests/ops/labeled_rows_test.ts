/**
 * Losses fused with the head compute the rows that have labels alone: with the bits of all rows, and no more memory.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { Device } from "../../src/device/device.ts";
import { openDevice } from "../../src/device/registry.ts";
import { type DeviceTraits, PLAIN_TRAITS } from "../../src/device/traits.ts";
import { bfloat16, type DType, float16, float32, int32 } from "../../src/dtype.ts";
import { linearCrossEntropy } from "../../src/nn/functional.ts";
import { tensor } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import { CheckedDevice } from "../support/checked_device.ts";
import { disposeLeaf, leaf } from "../support/gradcheck.ts";
import { random } from "../support/reference.ts";
import { longTest } from "../support/share.ts";

/** A device whose labels the host may read. */
class ReadDevice extends CheckedDevice {
  override readonly traits: DeviceTraits;

  constructor(device: Device) {
    super(device);
    this.traits = { ...PLAIN_TRAITS, hostBase: device.traits.hostBase };
  }
}

/** Sizes and options of a loss. */
interface Case {
  readonly dtype: DType;
  readonly vocab: number;
  readonly labels: readonly number[];
  readonly frozen?: boolean;
  readonly bias?: boolean;
  readonly softcap?: number;
  readonly labelSmoothing?: number;
  readonly zLoss?: number;
}

const WIDTH = 20;

/** The loss, the gradients of hidden states, weight and bias, and the most memory in use. */
function computed(device: CheckedDevice, { dtype, vocab, labels, frozen = false, bias = false, ...terms }: Case) {
  const rows = labels.length;
  const inputs = [random([rows, WIDTH], 1), random([vocab, WIDTH], 2), random([vocab], 3)];
  const leaves = inputs.map((input) => leaf(device, input));
  const values: number[][] = [];
  device.allocator.resetPeak();
  const before = device.allocator.stats.inUse;
  device.calls.clear();
  {
    using _frame = scope();
    const [x, w, b] = leaves.map((one, i) => (frozen && i === 1 ? one.detach() : one).to(dtype));
    assert.ok(x !== undefined && w !== undefined && b !== undefined);
    const given = tensor(device, labels, { dtype: int32 });
    const loss = linearCrossEntropy(x, w, given, { ...terms, ...bias ? { bias: b } : {} });
    values.push([...loss.toArray()]);
    loss.mul(1 / 3).backward();
  }
  const peak = device.allocator.stats.peak - before;
  for (const one of leaves) {
    values.push([...one.grad?.toArray() ?? []].map((value) => value + 0)); // -0 and 0 are one gradient
    disposeLeaf(one);
  }
  return { values, peak, gathers: device.calls.get("embedding") ?? 0 };
}

/** Both ways have the same bits; the number of copies of rows tells if some were left out. */
async function compare(name: string, one: Case, isSelected: boolean, cpuMath: "native" | "wasm" = "native") {
  const open = (): Promise<Device> => openDevice("cpu", { memoryBytes: 64 * 2 ** 20, threads: 1, cpuMath });
  const [read, unread] = [new ReadDevice(await open()), new CheckedDevice(await open())];
  const [some, all] = [computed(read, one), computed(unread, one)];
  assert.equal(all.gathers, 0, `${name}: gathers of all rows`);
  assert.equal(some.gathers > 0, isSelected, `${name}: ${some.gathers} gathers`);
  for (const [i, what] of ["loss", "hidden", "weight", "bias"].entries()) {
    assert.deepEqual(some.values[i], all.values[i], `${name}: ${what}`);
  }
  assert.ok(some.peak <= all.peak, `${name}: ${some.peak} bytes in place of ${all.peak}`);
  [read, unread].forEach((device) => device.dispose());
}

const labelsWhere = (rows: number, vocab: number, isLabeled: (row: number) => boolean): readonly number[] =>
  Array.from({ length: rows }, (_, row) => isLabeled(row) ? (row * 7919) % vocab : -100);

/** Spans of answers, of odd lengths at odd places. */
const SPANS = (row: number): boolean => row % 97 >= 58 && row % 97 < 87;

test("linearCrossEntropy() of spans of labels has the bits of all rows: dtypes, options, several chunks and sums", async () => {
  for (const dtype of [float32, bfloat16, float16]) {
    await compare(`${dtype.name}, chunks`, { dtype, vocab: 4500, labels: labelsWhere(900, 4500, SPANS) }, true);
    const bias = { dtype, vocab: 1300, labels: labelsWhere(1201, 1300, SPANS), bias: true };
    await compare(`${dtype.name}, sums`, bias, true);
  }
  const labels = labelsWhere(640, 300, SPANS);
  await compare("terms", { dtype: float32, vocab: 300, labels, labelSmoothing: 0.1, zLoss: 0.01 }, true);
  await compare("softcap", { dtype: float32, vocab: 300, labels, softcap: 4, bias: true }, true);
  await compare("frozen", { dtype: bfloat16, vocab: 300, labels, frozen: true }, true);
});

test("linearCrossEntropy() in WASM has the bits of all rows", async () => {
  await compare("wasm", { dtype: float32, vocab: 1300, labels: labelsWhere(1201, 1300, SPANS) }, true, "wasm");
});

test("linearCrossEntropy() leaves no row out where it cannot pay or would not have the same bits", async () => {
  const f32 = { dtype: float32, vocab: 300 };
  const cases: readonly (readonly [string, Omit<Case, "dtype">, boolean])[] = [
    ["no label", { vocab: 300, labels: labelsWhere(64, 300, () => false) }, true],
    ["one label", { vocab: 300, labels: labelsWhere(64, 300, (row) => row === 63) }, true],
    ["a label in a last group of one", { vocab: 300, labels: labelsWhere(65, 300, (row) => row === 64) }, false],
    ["all labels", { vocab: 300, labels: labelsWhere(64, 300, () => true) }, false],
    ["every fourth row", { vocab: 300, labels: labelsWhere(64, 300, (row) => row % 4 === 0) }, false],
    ["three rows", { vocab: 300, labels: labelsWhere(3, 300, (row) => row === 1) }, false],
    ["a last chunk of one", { vocab: 4500, labels: labelsWhere(257, 4500, (row) => row < 8) }, false],
    ["a chunk without labels", { vocab: 4500, labels: labelsWhere(900, 4500, (row) => row >= 600) }, true],
    ["no row", { vocab: 300, labels: [] }, false],
  ];
  for (const [name, one, isSelected] of cases) await compare(name, { ...f32, ...one }, isSelected);
});

test("linearCrossEntropy() names the row of a label out of range, though rows before it have no label", async () => {
  using stack = new DisposableStack();
  const device = stack.adopt(new ReadDevice(await openDevice("cpu", { memoryBytes: 2 ** 24 })), (one) => one.dispose());
  using _frame = scope();
  const [x, w] = [random([64, WIDTH], 1), random([300, WIDTH], 2)].map(({ shape, data }) =>
    tensor(device, data, { shape })
  );
  assert.ok(x !== undefined && w !== undefined);
  const labels = tensor(device, labelsWhere(64, 300, (row) => row > 50).with(60, 300), { dtype: int32 });
  assert.throws(() => linearCrossEntropy(x, w, labels).item(), /label 300 at row 60: there are 300 classes/);
});

longTest("linearCrossEntropy() has the bits of all rows with labels at random places", async () => {
  for (let seed = 0; seed < 24; seed++) {
    const rows = 1 + (seed * 131) % 700;
    const vocab = [7, 300, 1300, 4500][seed % 4] ?? NaN;
    const share = ((seed * 37) % 100) / 100;
    const { data } = random([rows], seed, 0, 1);
    const labels = labelsWhere(rows, vocab, (row) => (data[seed % 3 === 0 ? row : row - row % 19] ?? NaN) < share);
    const dtype = [float32, bfloat16, float16][seed % 3] ?? float32;
    const open = (): Promise<Device> => openDevice("cpu", { memoryBytes: 64 * 2 ** 20, cpuMath: "native" });
    const [read, unread] = [new ReadDevice(await open()), new CheckedDevice(await open())];
    const one = { dtype, vocab, labels, bias: seed % 2 === 0 };
    const [some, all] = [computed(read, one), computed(unread, one)];
    assert.deepEqual(some.values, all.values, `seed ${seed}`);
    assert.ok(some.peak <= all.peak, `seed ${seed}`);
    [read, unread].forEach((device) => device.dispose());
  }
});
