/**
 * Kernels compiled by NVIDIA's compiler are kept, and what they take is read and judged. That all kernels compile for all kinds of
 * cards is shown by `npm run test:cuda`.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { compileKernel, KernelCompiler } from "../../../src/device/cuda/compiler.ts";
import { TENSOR_FORMS, tensorFormsOf } from "../../../src/device/cuda/tensor_cores.ts";
import { kernelText, readKernelTexts } from "../../../src/device/cuda/texts.ts";
import { ARCHITECTURES, findCompiler, JOBS, usesIn } from "../../../scripts/cuda_kernels/compile.ts";
import { documentOf, EXPLAINED, faultsOf, tableOf } from "../../../scripts/cuda_kernels/report.ts";
import { KERNELS } from "../../../src/device/kernels/table.ts";
import { temporaryDirectory } from "../../support/temporary.ts";

const nvrtc = await findCompiler();
const skip = nvrtc === undefined && "needs NVRTC: run scripts/cuda_libraries.sh";

test("KernelCompiler keeps what it compiled, by text, card and compiler", { skip }, async () => {
  assert.ok(nvrtc !== undefined);
  using directory = temporaryDirectory();
  const text = kernelText(await readKernelTexts(), "updateScale", "training");
  const started = performance.now();
  const code = new KernelCompiler(nvrtc, "sm_90", directory.path).code("updateScale", text);
  const compiled = performance.now();
  assert.deepEqual(new KernelCompiler(nvrtc, "sm_90", directory.path).code("updateScale", text), code);
  assert.ok(performance.now() - compiled < (compiled - started) / 2, "it was not compiled again");
  assert.notDeepEqual(new KernelCompiler(nvrtc, "sm_80", directory.path).code("updateScale", text), code);
});

test("usesIn() reads registers, spills and shared memory of NVRTC's log", { skip }, () => {
  assert.ok(nvrtc !== undefined);
  const text = `extern "C" __global__ void __launch_bounds__(1024, 2) crowded(float* x) {
      __shared__ float s[96];
      float kept[64];
      for (int i = 0; i < 64; i++) kept[i] = x[i * 1024 + threadIdx.x];
      s[threadIdx.x % 96] = kept[5];
      __syncthreads();
      for (int i = 0; i < 64; i++) x[i * 1024 + threadIdx.x] = kept[63 - i] * s[i];
    }
    extern "C" __global__ void idle() {}`;
  const uses = usesIn(compileKernel(nvrtc, "crowded", text, "sm_90").log);
  assert.deepEqual(uses.map(({ point }) => point).sort(), ["crowded", "idle"]);
  const crowded = uses.find(({ point }) => point === "crowded") ?? assert.fail();
  assert.equal(crowded.registers, 32);
  assert.ok(crowded.spills > 0);
  assert.equal(crowded.shared, 4 * 96);
});

test("forms for tensor cores hold all heads that a kernel takes, the narrowest first, in 99 KiB", () => {
  for (const [kernel, forms] of Object.entries(TENSOR_FORMS)) {
    assert.deepEqual([forms.at(-1)?.headDim, forms.at(-1)?.valueDim], [256, 256], kernel);
    assert.deepEqual(forms, forms.toSorted((a, b) => a.headDim - b.headDim || a.valueDim - b.valueDim), kernel);
    for (const { sharedBytes } of forms.flatMap(({ passes }) => passes)) assert.ok(sharedBytes <= 99 * 1024, kernel);
  }
});

test("faultsOf() finds refusals, spills, and too many registers and bytes of shared memory", () => {
  const job = { kernel: "fill", file: "elementwise", architecture: "sm_90" };
  const use = { point: "run_fill", registers: 128, spills: 64, shared: 48 * 1024 };
  assert.deepEqual(faultsOf({ ...job, uses: [use] }), []);
  for (const [kernel, { registers, spills }] of Object.entries(EXPLAINED)) {
    const most = { ...use, registers, spills };
    assert.deepEqual(faultsOf({ ...job, kernel, uses: [most] }), [], kernel);
    assert.equal(
      faultsOf({ ...job, kernel, uses: [{ ...most, registers: registers + 1, spills: spills + 1 }] }).length,
      2,
    );
  }
  const [form] = tensorFormsOf("attention");
  assert.ok(form !== undefined);
  const tensor = { kernel: "attention", file: "attention", architecture: "sm_90", form };
  const full = { point: "run_attention64_bfloat16", registers: 255, spills: 0, shared: 99 * 1024 };
  assert.deepEqual(faultsOf({ ...tensor, uses: [full] }), []);
  assert.equal(faultsOf({ ...tensor, uses: [{ ...full, spills: 68, shared: 99 * 1024 + 1 }] }).length, 2);
  assert.deepEqual(faultsOf({ ...tensor, uses: [] }), ["attention64 for sm_90: no entry point"]);
  assert.deepEqual(faultsOf({ ...job, uses: [] }), ["fill for sm_90: no entry point"]);
  assert.deepEqual(faultsOf({ ...job, refusal: "no" }), ["no"]);
  assert.deepEqual(faultsOf({ ...job, uses: [use, { ...use, registers: 129, spills: 68, shared: 49_153 }] }), [
    "run_fill for sm_90 takes 129 registers, more than 128",
    "run_fill for sm_90 spills 68 bytes, more than 64",
    "run_fill for sm_90 takes 49153 bytes of shared memory, more than 49152",
  ]);
});

test("tables have a line for each kernel, with the most of its entry points", () => {
  assert.deepEqual([...new Set(JOBS.map(({ kernel }) => kernel))].sort(), Object.keys(KERNELS).sort());
  const outcomes = ARCHITECTURES.map((architecture, i) => ({
    ...{ kernel: "fill", file: "elementwise", architecture },
    uses: [{ point: "a", registers: 10 + i, spills: 0, shared: 8 }, { point: "b", registers: 9, spills: 4, shared: 0 }],
  }));
  assert.match(tableOf(outcomes).join("\n"), /^fill +10\/4\/8 +11\/4\/8 +12\/4\/8 +13\/4\/8 .*16\/4\/8$/m);
  const [first, ...others] = outcomes;
  assert.ok(first !== undefined);
  const refused = { kernel: first.kernel, file: first.file, architecture: first.architecture, refusal: "no" };
  assert.match(tableOf([refused, ...others]).join("\n"), /^fill +refused +11\/4\/8 /m);
  assert.doesNotMatch(tableOf(others).join("\n"), /sm_80/);
  const page = documentOf(outcomes, "NVRTC 13.0", "2026-01-02");
  assert.match(page, /^Compiled by NVRTC 13\.0 on 2026-01-02, .* for sm_80, /m);
  assert.match(page, /^- `attentionBackward`: .*\.$/m);
  assert.match(page, /^\| fill \| 14 \| 16 \| 4 \| 8 \|$/m);
});
