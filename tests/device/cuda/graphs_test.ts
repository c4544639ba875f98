/** Graphs of one card, on a double of NVIDIA's libraries: what is read anew, what is refused, and where memory comes from. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { GraphMemory } from "../../../src/device/graph_memory.ts";
import { type CudaDevice, openCudaDevice } from "../../../src/device/cuda/device.ts";
import { bfloat16, type DType, float32 } from "../../../src/dtype.ts";
import { GraphCaptureError } from "../../../src/errors.ts";
import type { DeviceEvent, Stream, StreamName } from "../../../src/device/stream.ts";
import { tensor } from "../../../src/tensor/create.ts";
import { scope } from "../../../src/tensor/scope.ts";
import { Tensor } from "../../../src/tensor/tensor.ts";
import { encode } from "../../conformance/kernels/bed.ts";
import { buildCudaTwin, type CudaTwin, lackingForTwin, twinReports } from "../../native/cuda/build.ts";

const skip = lackingForTwin();

async function onCard(play: (device: CudaDevice, twin: CudaTwin) => void): Promise<void> {
  const twin = await buildCudaTwin();
  const device = await openCudaDevice(0, { environment: twin.environment, memoryBytes: 2 ** 24 });
  try {
    play(device, twin);
    assert.equal(twin.runtime.symbols.twinGraphs(), 0);
    assert.deepEqual(device.allocator.owners(10), []);
  } finally {
    device.dispose();
  }
  assert.equal(twinReports(twin), "");
}

/** Adds 1 to what lies in `x`, and gives it times a number on the card, by way of the reduce stream. */
function workOf(device: CudaDevice, x: Tensor, factor: { readonly ptr: Tensor["ptr"] }): () => Tensor {
  return () => {
    using _frame = scope();
    const { streams } = device;
    const y = x.add(1);
    streams.get("reduce").wait(streams.current.record());
    const done = streams.on("reduce", () => {
      device.kernels.scaleBy({ dtype: float32, n: y.numel, dst: y.ptr, src: y.ptr, factor: factor.ptr });
      return streams.current.record();
    });
    streams.current.wait(done);
    const result = Tensor.empty(device, [3], float32, "result");
    device.copy(result.ptr, y.ptr, 12);
    return result;
  };
}

test(
  "a graph reads tensors and numbers anew whenever it is launched, and gives its memory back",
  { skip },
  async () => {
    await onCard((device) => {
      const x = Tensor.empty(device, [3], float32, "x").copyFromHost(Float32Array.of(1, 2, 3));
      using factor = device.scalars.make(2);
      const work = workOf(device, x, factor);
      const plan = device.graphs.rehearse(work);
      assert.deepEqual([...plan.value.toArray()], [4, 6, 8]);
      plan.value.dispose();
      assert.equal(plan.bytes, 512, "the result takes memory that nothing else has, as y's was in use");
      const { graph, value } = device.graphs.capture("a test", plan, work);
      for (const [input, number, expected] of [[5, 2, 12], [7, 3, 24], [0, -1, -1]] as const) {
        x.copyFromHost(new Float32Array(3).fill(input));
        factor.value = number;
        device.scalars.flush();
        graph.launch();
        assert.deepEqual([...value.toArray()], [expected, expected, expected]);
      }
      value.dispose();
      graph[Symbol.dispose]();
      x.dispose();
    });
  },
);

test("what outlives a graph keeps the graph's memory", { skip }, async () => {
  await onCard((device) => {
    const x = tensor(device, [1, 2, 3]);
    using factor = device.scalars.make(2);
    const work = workOf(device, x, factor);
    const plan = device.graphs.rehearse(work);
    plan.value.dispose();
    const { graph, value } = device.graphs.capture("a test", plan, work);
    device.scalars.flush();
    graph.launch();
    graph[Symbol.dispose]();
    assert.deepEqual([...value.toArray()], [4, 6, 8]);
    value.dispose();
    x.dispose();
  });
});

test("attention on tensor cores reads its arrays and the sample of its dropout anew in a graph", { skip }, async () => {
  await onCard((device) => {
    const [tokens, headDim] = [20, 16];
    const arrays = new Map<string, Tensor>();
    const array = (name: string, heads: number, dtype: DType = bfloat16): Tensor["ptr"] => {
      const made = Tensor.empty(device, [tokens * heads * (dtype === float32 ? 1 : headDim)], dtype, name);
      arrays.set(name, made);
      device.copyIn(made.ptr, new Uint8Array(made.numel * dtype.byteLength));
      return made.ptr;
    };
    const args = {
      ...{ dtype: bfloat16, batch: 1, seqQ: tokens, seqK: tokens, heads: 2, kvHeads: 1, headDim, valueDim: headDim },
      ...{ strideQ: 2 * headDim, strideK: headDim, strideV: headDim, scale: 0.25, causal: true, window: 0 },
      ...{ softcap: 0, maskRows: 1, p: 0.25, key: 7, q: array("q", 2), k: array("k", 1), v: array("v", 1) },
      ...{ o: array("o", 2), lse: array("lse", 2, float32) },
    };
    const gradients = { dO: array("dO", 2), dq: array("dq", 2), dk: array("dk", 1), dv: array("dv", 1) };
    const attend = (sample: number): void => {
      device.kernels.attention({ ...args, sample });
      device.kernels.attentionBackward({ ...args, ...gradients, sample });
    };
    const fill = (shift: number): void => {
      for (const name of ["q", "k", "v", "dO"]) {
        const input = arrays.get(name) ?? assert.fail(name);
        const values = Array.from({ length: input.numel }, (_, i) => Math.sin(shift + i * (1 + name.length)));
        device.copyIn(input.ptr, encode(bfloat16, values));
      }
    };
    const results = (): number[][] =>
      ["o", "lse", "dq", "dk", "dv"].map((name) => [...(arrays.get(name) ?? assert.fail(name)).toArray()]);
    fill(1);
    const plan = device.graphs.rehearse(() => attend(0));
    const before = results();
    const { graph } = device.graphs.capture("a test", plan, () => attend(0));
    fill(2);
    attend(5);
    const expected = results();
    device.graphs.setFirstSample(5);
    for (const name of ["o", "lse", "dq", "dk", "dv"]) {
      const result = arrays.get(name) ?? assert.fail(name);
      device.clear(result.ptr, result.numel * result.dtype.byteLength);
    }
    graph.launch();
    assert.deepEqual(results(), expected);
    fill(1);
    device.graphs.setFirstSample(0);
    graph.launch();
    assert.deepEqual(results(), before);
    assert.notDeepEqual(before, expected);
    graph[Symbol.dispose]();
    for (const one of arrays.values()) one.dispose();
  });
});

const REFUSED: readonly (readonly [what: string, work: (device: CudaDevice, x: Tensor) => void, said: RegExp])[] = [
  [
    "reads a value",
    (_, x) => void x.toArray(),
    /^Cannot capture a test: the captured work reads a value on the host, or waits for the card; do so after the launch$/,
  ],
  [
    "copies values of the host",
    (_, x) => void x.copyFromHost(new Float32Array(3)),
    /^Cannot capture a test: the captured work copies host values to the card; every launch would use the same values$/,
  ],
  [
    "waits for the card",
    (device) => device.synchronize(),
    /^Cannot capture a test: the captured work reads a value on the host/,
  ],
  [
    "runs a kernel that was not loaded",
    (device, x) => device.kernels.fill({ dtype: float32, n: 3, value: 0, dst: x.ptr }),
    /^Cannot capture a test: kernel 'fill' runs for the first time in it; run the work once more before$/,
  ],
  [
    "makes a number of the card's",
    (device) => void device.scalars.make(3),
    /^Cannot capture a test: a number that the card reads is made in it; make it before$/,
  ],
  [
    "begins another capture",
    (device) => void device.graphs.capture("another", { value: 0, bytes: 256 }, () => {}),
    /^Cannot capture a test: another capture begins in it$/,
  ],
];

for (const [what, work, said] of REFUSED) {
  test(`work that ${what} is refused in a capture, after which the card works on`, { skip }, async () => {
    await onCard((device) => {
      const x = Tensor.empty(device, [3], float32, "x").copyFromHost(Float32Array.of(1, 2, 3));
      const capture = (): unknown =>
        device.graphs.capture("a test", { value: undefined, bytes: 4096 }, () => {
          device.copy(x.ptr, x.ptr, 0);
          work(device, x);
        });
      assert.throws(capture, (error) => {
        assert.ok(error instanceof GraphCaptureError);
        assert.match(error.message, said);
        return error.work === "a test";
      });
      assert.deepEqual([...x.toArray()], [1, 2, 3]);
      x.dispose();
    });
  });
}

test("memory of a graph goes to another stream late, by turns, and after an event", () => {
  const waits: string[] = [];
  const streamOf = (name: StreamName): Stream => {
    const event: DeviceEvent = { done: false };
    return { name, record: () => event, wait: () => void waits.push(name) };
  };
  const [compute, gather] = [streamOf("compute"), streamOf("gather")];
  let current = gather;
  const memory = new GraphMemory("test", 4096, 2 ** 20, () => current, () => true);
  const on = <T>(stream: Stream, body: () => T): T => {
    current = stream;
    return body();
  };
  const places: number[] = [];
  for (let i = 0; i < 5; i++) {
    const whole = on(gather, () => memory.allocate(1024, "whole"));
    places.push(whole);
    on(compute, () => memory.free(whole));
  }
  // The second does not wait for the first one's end, the third does.
  assert.deepEqual(places, [4096, 5120, 4096, 5120, 4096]);
  assert.deepEqual(waits, ["gather", "gather", "gather"]);
  // A stream takes parts that it has freed itself at once.
  const first = on(compute, () => memory.allocate(512, "own"));
  on(compute, () => memory.free(first));
  assert.equal(on(compute, () => memory.allocate(512, "own")), first);
  assert.equal(waits.length, 3);
});
