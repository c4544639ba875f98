/**
 * Attention by cuDNN on doubles of NVIDIA's libraries: values of the plain formula, which calls it gets and which it does not,
 * a Llama that trains, graphs, and what is said where it is missing or too old.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { deviceMesh } from "../../../src/comm/mesh.ts";
import { openProcessGroup } from "../../../src/comm/registry.ts";
import { type CudaDevice, openCudaDevice } from "../../../src/device/cuda/device.ts";
import type { Device } from "../../../src/device/device.ts";
import { openDevice } from "../../../src/device/registry.ts";
import { bfloat16, type DType, float16, float32, uint8 } from "../../../src/dtype.ts";
import { GraphCaptureError, LibraryNotFoundError, UnsupportedError } from "../../../src/errors.ts";
import { openPosix } from "../../../src/ffi/posix.ts";
import { fullyShard } from "../../../src/fsdp/fully_shard.ts";
import { attention } from "../../../src/nn/functional.ts";
import type { AttentionAttrs } from "../../../src/ops/attention.ts";
import { environmentFrom } from "../../../src/runtime/env.ts";
import { tensor } from "../../../src/tensor/create.ts";
import type { Parameter } from "../../../src/tensor/parameter.ts";
import { scope } from "../../../src/tensor/scope.ts";
import { Tensor } from "../../../src/tensor/tensor.ts";
import { CASES } from "../../conformance/device.ts";
import { Bed } from "../../conformance/kernels/bed.ts";
import type { AnyCase } from "../../conformance/kernels/case.ts";
import { buildCudaTwin, lackingForTwin, openCudnnTwin, twinLog, twinReports } from "../../native/cuda/build.ts";
import { disposeLeaf, leaf } from "../../support/gradcheck.ts";
import { longTest, sharedTest } from "../../support/share.ts";
import { type Steps, train } from "./llama.ts";

const skip = lackingForTwin();
const twin = skip === undefined ? await buildCudaTwin() : undefined;

/** A card on which cuDNN computes attention, and what it reports. */
async function openCard(memoryBytes: number = 2 ** 26): Promise<{ device: CudaDevice; reports: string[] }> {
  const reports: string[] = [];
  const { environment } = twin ?? assert.fail();
  const report = (text: string): void => void reports.push(text);
  const device = await openCudaDevice(0, { environment, memoryBytes, attention: "cudnn", report });
  return { device, reports };
}

/** The suite's attentions of 2-byte floats without masks of keys, windows and dropout. */
function isForCudnn({ args, without = [] }: AnyCase): boolean {
  return args["dtype"] !== float32 && args["window"] === 0 && args["p"] === 0 && without.includes("keyMask");
}

for (const kernel of ["attention", "attentionBackward"] as const) {
  sharedTest(
    `cuDNN computes what ${kernel}() says, where arrays begin at multiples of 16 bytes`,
    { skip },
    async () => {
      assert.ok(twin !== undefined);
      const { device, reports } = await openCard(2 ** 28);
      const bed = new Bed(device, [8, 24], false);
      const list: readonly AnyCase[] = CASES[kernel];
      twinLog(twin);
      for (const one of list.filter(isForCudnn)) bed.run(kernel, one);
      const calls = twinLog(twin).filter(({ name }) => name.endsWith("by cuDNN")).length;
      // Nine of the lengths and dims of heads that the suite has are for cuDNN in both directions, each at two places.
      assert.ok(calls >= 18, `${calls} calls`);
      assert.equal(new Set(reports).size, reports.length, "a report is given twice");
      assert.equal(device.allocator.stats.inUse, bed.kept);
      device.dispose();
      assert.equal(twinReports(twin), "");
    },
  );
}

/** Sizes of an attention. */
interface Sizes extends AttentionAttrs {
  readonly dtype: DType;
  readonly seqQ: number;
  readonly seqK: number;
  readonly headDim: number;
  readonly isMasked?: boolean;
}

const SIZES: Sizes = {
  ...{ dtype: bfloat16, seqQ: 9, seqK: 9, heads: 4, kvHeads: 2, headDim: 16, causal: true, scale: 0.25 },
};

/** The output of an attention and its gradients. */
function attend(device: Device, sizes: Sizes): number[][] {
  using _frame = scope();
  const { dtype, seqQ, seqK, headDim, isMasked, sinks, ...attrs } = sizes;
  const input = (seq: number, heads: number, shift: number): Parameter => {
    const values = Float32Array.from({ length: 2 * seq * heads * headDim }, (_, i) => Math.sin(shift + i * 1.7));
    return leaf(device, { shape: [2, seq, heads * headDim], data: [...values] });
  };
  const leaves = [input(seqQ, attrs.heads, 1), input(seqK, attrs.kvHeads, 2), input(seqK, attrs.kvHeads, 3)] as const;
  const [q, k, v] = [leaves[0].to(dtype), leaves[1].to(dtype), leaves[2].to(dtype)];
  const seen = Uint8Array.from({ length: 2 * seqK }, (_, i) => Number(i % 3 > 0));
  const mask = isMasked === true ? tensor(device, seen, { shape: [2, seqK], dtype: uint8 }) : undefined;
  const logits = sinks === true ? tensor(device, [1, -1, 0.5, 2], { dtype }) : undefined;
  const out = attention(q, k, v, attrs, mask, logits);
  out.mul(out).sum().backward();
  const results = [out, ...leaves.map(({ grad }) => grad ?? assert.fail())].map((x) => [...x.toArray()]);
  for (const one of leaves) disposeLeaf(one);
  return results;
}

/** The directions that cuDNN is to compute, and the reports on the others. */
const CALLS: readonly (readonly [
  what: string,
  change: Partial<Sizes>,
  directions: "both" | "forward" | "none",
  said: readonly RegExp[],
])[] = [
  ["bfloat16", {}, "both", []],
  ["float16 without a mask", { dtype: float16, causal: false }, "both", []],
  ["more keys than queries", { seqK: 21 }, "both", []],
  ["a head of keys for each of queries", { seqQ: 2, seqK: 40, kvHeads: 4 }, "both", []],
  ["sinks, which a kernel of ours adds,", { sinks: true }, "both", []],
  ["heads of 192 dims", { headDim: 192 }, "forward", [
    /^The backward of attention of bfloat16 with heads of 192 dims is computed by our own kernels: cuDNN 9\.28\.1 has no plan for it on cuda:0 \(what it proposes may give other bits each time\)$/,
  ]],
  ["float32", { dtype: float32 }, "none", [
    /^Attention of float32 is computed by our own kernels: this library does not give it to cuDNN$/,
  ]],
  ["a mask of keys", { isMasked: true, causal: false }, "none", [/^Attention with a mask of keys is/]],
  ["one query", { seqQ: 1, seqK: 40 }, "none", [/^Attention of one query is/]],
  ["a window", { window: 3 }, "none", [/^Attention within a window is/]],
  ["bounded scores", { softcap: 1.5 }, "none", [/^Attention with bounded scores is/]],
  ["dropout", { dropout: { p: 0.25, key: 7, sample: 3 } }, "none", [/^Attention with dropout is/]],
  ["heads of 12 dims", { headDim: 12 }, "none", [/^Attention of heads of 12 dims, no multiple of 8, is/]],
  ["queries that see nothing", { seqQ: 9, seqK: 4 }, "none", [/^Attention whose first queries see no key is/]],
];
for (const [what, change, directions, said] of CALLS) {
  const who =
    { both: "cuDNN", forward: "cuDNN in the forward", none: "our own kernels, which is told once" }[directions];
  test(`attention with ${what} is computed by ${who}, with the CPU's results`, { skip }, async () => {
    assert.ok(twin !== undefined);
    const sizes = { ...SIZES, ...change };
    const cpu = await openDevice("cpu", { memoryBytes: 2 ** 25 });
    const expected = attend(cpu, sizes);
    cpu.dispose();
    const { device, reports } = await openCard();
    twinLog(twin);
    const found = attend(device, sizes);
    assert.deepEqual(attend(device, sizes), found, "the same call gives other bits");
    const names = twinLog(twin).map(({ name }) => name).filter((name) => name.includes("cuDNN"));
    const forward = "attention by cuDNN";
    const once = { both: [forward, "attention backward by cuDNN"], forward: [forward], none: [] }[directions];
    assert.deepEqual(names, [...once, ...once]);
    assert.equal(reports.length, said.length, reports.join("\n"));
    for (const [i, words] of said.entries()) assert.match(reports[i] ?? assert.fail(), words);
    // Of float16 the own kernels round weights before they multiply them.
    const epsilon = { bfloat16: 2 ** -7, float16: 2 ** -9, float32: 2e-5 }[sizes.dtype.name] ?? assert.fail();
    for (const [at, values] of found.entries()) {
      const wanted = expected[at] ?? assert.fail();
      const most = Math.max(...wanted.map(Math.abs));
      values.forEach((value, i) => {
        const want = wanted[i] ?? assert.fail();
        assert.ok(Math.abs(value - want) <= 2 * epsilon * most, `result ${at} at ${i}: ${value}, on the CPU ${want}`);
      });
    }
    assert.deepEqual(device.allocator.owners(10), []);
    device.dispose();
    assert.equal(twinReports(twin), "");
  });
}

/** Trains the small Llama in bfloat16 on one rank. */
async function trainInBfloat16(device: Device): Promise<Steps> {
  using group = await openProcessGroup({ device });
  const mesh = deviceMesh(group, { shard: 1 });
  const precision = { paramDtype: bfloat16, reduceDtype: float32 };
  return train(device, {
    ...{ steps: 8, batch: 2, group },
    parallelize: (model) => {
      for (const module of [...model.layers, model]) fullyShard(module, { mesh, precision });
    },
  });
}

longTest("a small Llama trains in bfloat16 with cuDNN as with our own kernels and on the CPU", { skip }, async () => {
  assert.ok(twin !== undefined);
  const cpu = await openDevice("cpu", { memoryBytes: 2 ** 26 });
  const onCpu = await trainInBfloat16(cpu);
  cpu.dispose();
  const own = await openCudaDevice(0, { environment: twin.environment, memoryBytes: 2 ** 27 });
  const byOwn = await trainInBfloat16(own);
  own.dispose();
  const { device, reports } = await openCard(2 ** 27);
  assert.deepEqual([device.mathName, device.traits.attention, own.traits.attention], ["cuda", "cudnn", "own"]);
  assert.match(device.detail, /, attention by cuDNN 9\.28\.1 \(.+\/cudnn\.so\)$/);
  twinLog(twin);
  const found = await trainInBfloat16(device);
  const names = twinLog(twin).map(({ name }) => name);
  const count = (what: string): number => names.filter((name) => name === what).length;
  assert.deepEqual([count("attention by cuDNN"), count("attention backward by cuDNN")], [16, 16]);
  assert.deepEqual(reports, []);
  device.dispose();
  // Our own kernels round weights before they multiply them, which the CPU and the double of cuDNN do not.
  for (const [other, tolerance] of [[onCpu, 0.005], [byOwn, 0.06]] as const) {
    for (const [step, values] of found.entries()) {
      values.forEach((value, i) => {
        const want = other[step]?.[i] ?? assert.fail();
        const what = `step ${step}: ${["loss", "norm"][i]} ${value}, not ${want}`;
        assert.ok(Math.abs(value - want) <= tolerance * want, what);
      });
    }
  }
  assert.equal(twinReports(twin), "");
});

test("a graph has attention by cuDNN as it is without, but not for the first time", { skip }, async () => {
  assert.ok(twin !== undefined);
  const { device } = await openCard();
  const sizes = { ...SIZES, seqK: 21, scale: 0.125 };
  const { seqQ, seqK, heads, kvHeads, headDim } = sizes;
  const make = (name: string, numel: number, dtype: DType = bfloat16): Tensor =>
    Tensor.empty(device, [numel], dtype, name);
  const [q, k, v] = [
    make("q", seqQ * heads * headDim),
    make("k", seqK * kvHeads * headDim),
    make("v", seqK * kvHeads * headDim),
  ];
  const [o, lse] = [make("o", q.numel), make("lse", heads * seqQ, float32)];
  const all = [q, k, v, o, lse];
  const fill = (shift: number): void => {
    using _frame = scope();
    for (const [i, x] of [q, k, v].entries()) {
      const values = Float32Array.from({ length: x.numel }, (_, at) => Math.sin(shift + i + at * 1.3));
      device.copy(x.ptr, tensor(device, values, { shape: [x.numel], dtype: bfloat16 }).ptr, 2 * x.numel);
    }
  };
  const attention = (): void =>
    device.kernels.attention({
      ...{ dtype: bfloat16, batch: 1, seqQ, seqK, heads, kvHeads, headDim, valueDim: headDim, scale: sizes.scale },
      ...{ strideQ: heads * headDim, strideK: kvHeads * headDim, strideV: kvHeads * headDim, causal: true, window: 0 },
      ...{ softcap: 0, maskRows: 1, p: 0, key: 0, sample: 0, q: q.ptr, k: k.ptr, v: v.ptr, o: o.ptr, lse: lse.ptr },
    });
  const results = (): number[][] => [o, lse].map((x) => [...x.toArray()]);
  fill(1);
  assert.throws(() => device.graphs.capture("a test", { value: undefined, bytes: 2 ** 16 }, attention), (error) => {
    assert.ok(error instanceof GraphCaptureError, String(error));
    assert.match(
      error.message,
      /kernel 'attention by cuDNN' runs for the first time in it; run the work once more before/,
    );
    return true;
  });
  const plan = device.graphs.rehearse(attention);
  assert.ok(plan.bytes > 0, "the workspace is not counted");
  const first = results();
  const { graph } = device.graphs.capture("a test", plan, attention);
  fill(2);
  attention();
  const second = results();
  assert.notDeepEqual(first, second);
  for (const [shift, expected] of [[1, first], [2, second]] as const) {
    fill(shift);
    device.clear(o.ptr, 2 * o.numel);
    graph.launch();
    assert.deepEqual(results(), expected);
  }
  graph[Symbol.dispose]();
  for (const x of all) x.dispose();
  assert.deepEqual(device.allocator.owners(10), []);
  device.dispose();
  assert.equal(twinReports(twin), "");
});

test("a device gives back all that it has of cuDNN, and says what is missing or too old", { skip }, async () => {
  assert.ok(twin !== undefined);
  const { symbols } = await openCudnnTwin(twin.environment);
  const before = symbols.twinCudnnDescriptors();
  const { device } = await openCard();
  attend(device, SIZES);
  assert.ok(symbols.twinCudnnDescriptors() > before);
  device.dispose();
  assert.equal(symbols.twinCudnnDescriptors(), before);

  const nowhere = { ...twin.variables, FULLYSHARD_CUDNN_LIBRARY: "/nowhere/libcudnn.so.9" };
  const without = environmentFrom((name) => Object.entries(nowhere).find(([key]) => key === name)?.[1]);
  await assert.rejects(openCudaDevice(0, { environment: without, attention: "cudnn" }), (error) => {
    assert.ok(error instanceof LibraryNotFoundError, String(error));
    assert.match(error.message, /^Cannot open cuDNN\. Install it with 'pip install nvidia-cudnn-cu13'/);
    return true;
  });
  const posix = await openPosix();
  posix.setVariable("TWIN_CUDNN_VERSION", "92701");
  try {
    await assert.rejects(openCard(), (error) => {
      assert.ok(error instanceof UnsupportedError, String(error));
      assert.match(
        error.message,
        /^Cannot compute attention by cuDNN: cuDNN 9\.27\.1 \(.+\/cudnn\.so\) is too old, 9\.28 is the oldest that serves: 'pip install --upgrade nvidia-cudnn-cu13', or '-cu12' for a driver of CUDA 12, or leave attention 'cudnn' out$/,
      );
      return true;
    });
  } finally {
    posix.libc.symbols.unsetenv("TWIN_CUDNN_VERSION");
  }
  const own = await openCudaDevice(0, { environment: without });
  own.dispose();
  await assert.rejects(async () => await openDevice("cpu", { attention: "cudnn" }), {
    name: "UnsupportedError",
    message:
      "Cannot open device 'cpu' with attention 'cudnn', which computes on cards only. Leave it out, or open 'cuda'",
  });
  assert.equal(twinReports(twin), "");
});
