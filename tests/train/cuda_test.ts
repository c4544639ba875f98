/** Training runs from the command line on doubles of NVIDIA's cards, one for each rank. @module */
import assert from "node:assert/strict";
import { buildCudaTwin, lackingForTwin } from "../native/cuda/build.ts";
import { longTest, sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { flagsIn, losses, run } from "./runs.ts";

const skip = lackingForTwin();
const TIMEOUT = { skip, timeout: 300_000 };
const SMALL = ["tokens=bytes", "vocab=257", "--steps", "4"];

longTest(
  "'fullyshard run' trains on cards, stops, resumes and writes a model, as it does on the CPU",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const { variables } = await buildCudaTwin();
    const env = { ...variables, TWIN_CARDS: "2" };
    const cuda = flagsIn(folder, ...SMALL, "--device", "cuda");
    const stopped = await run([...cuda, "--stop-after", "2"], { env });
    assert.equal(stopped.code, 0, stopped.stdout + stopped.stderr);
    assert.match(stopped.stderr, /FSDP over 2 ranks \(nccl\)/);
    assert.match(stopped.stderr, /On cuda:0, CUDA kernels by NVRTC/);
    // From then on the saved checkpoint lies elsewhere.
    const resumed = await run([...cuda, "--resume", "auto", "--cpu-offload"], { env });
    assert.equal(resumed.code, 0, resumed.stdout + resumed.stderr);
    assert.match(resumed.stderr, /Resumed '.*checkpoint-2' at step 2/);
    assert.match(resumed.stdout + resumed.stderr, /out\/model/);
    const cpu = await run(flagsIn(folder, ...SMALL, "--out", folder.file("cpu")));
    assert.equal(cpu.code, 0, cpu.stdout + cpu.stderr);
    const expected = losses(folder, "cpu");
    assert.equal(expected.size, 4);
    for (const [step, loss] of losses(folder)) {
      const want = expected.get(step) ?? assert.fail(`step ${step}`);
      assert.ok(Math.abs(loss - want) <= 2e-4 * want, `step ${step}: loss ${loss}, on the CPU ${want}`);
    }
  },
);

longTest("attention by cuDNN trains by graphs, and rank 0 says once what cuDNN does not get", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const { variables } = await buildCudaTwin();
  const env = { ...variables, TWIN_CARDS: "2" };
  const flags = flagsIn(folder, ...SMALL, "--device", "cuda", "--precision", "bfloat16", "--steps", "6");
  const own = await run([...flags, "--out", folder.file("own")], { env });
  assert.equal(own.code, 0, own.stdout + own.stderr);
  const { code, stdout, stderr } = await run([...flags, "--attention", "cudnn", "--cuda-graphs"], { env });
  assert.equal(code, 0, stdout + stderr);
  assert.match(stderr, /On cuda:0, CUDA kernels by NVRTC .*, attention by cuDNN 9\.28\.1 \(/);
  const told = stderr.match(/warn .*by our own kernels.*/g) ?? [];
  // Only the sample of text at the end is written a token at a time.
  assert.deepEqual(told, [
    "warn  Attention of one query is computed by our own kernels: this library does not give it to cuDNN",
  ]);
  const expected = losses(folder, "own");
  for (const [step, loss] of losses(folder)) {
    const want = expected.get(step) ?? assert.fail(`step ${step}`);
    assert.ok(Math.abs(loss - want) <= 5e-3 * want, `step ${step}: loss ${loss}, by our own kernels ${want}`);
  }
});

longTest("a run that goes on with another attention says which it was, and how it is as before", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const env = { ...(await buildCudaTwin()).variables, TWIN_CARDS: "1" };
  const flags = flagsIn(folder, ...SMALL, "--device", "cuda", "--precision", "bfloat16", "--resume", "auto");
  const warnings: string[][] = [];
  for (const [step, attention] of ["own", "cudnn", "cudnn", "own"].entries()) {
    const part = ["--attention", attention, "--stop-after", String(step + 1)];
    const { code, stdout, stderr } = await run([...flags, ...part], { env, ranks: 1 });
    assert.equal(code, 0, stdout + stderr);
    warnings.push(stderr.match(/(?<=Results may differ in the last bits: ).*/g) ?? []);
  }
  assert.deepEqual(warnings, [
    [],
    ["attention was own, is cudnn; with attention 'own' it is computed as before"],
    [],
    ["attention was cudnn, is own; with attention 'cudnn' it is computed as before"],
  ]);
});

test("fewer cards than ranks are one clear error", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const { variables } = await buildCudaTwin();
  const flags = flagsIn(folder, ...SMALL, "--device", "cuda");
  const two = await run(flags, { env: { ...variables, TWIN_CARDS: "2" }, ranks: 3 });
  assert.notEqual(two.code, 0);
  assert.match(
    two.stderr,
    /Cannot open device 'cuda': the driver shows 2 cards for the 3 ranks of this host.*at most one rank for each card/,
  );
});

longTest("memory of the host that cannot be pinned is one clear error", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const { variables } = await buildCudaTwin();
  const env = { ...variables, TWIN_CARDS: "1", TWIN_UNPINNABLE: "1" };
  const flags = flagsIn(folder, ...SMALL, "--device", "cuda", "--cpu-offload");
  const { code, stderr } = await run(flags, { env, ranks: 1 });
  assert.notEqual(code, 0);
  assert.match(stderr, /Cannot pin 16777216 more bytes of the host .*cudaErrorMemoryAllocation.*pinMemory: false/s);
});

longTest(
  "ranks that share a card go through memory of the host, or by an NCCL that joins them, and say which",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const { variables } = await buildCudaTwin();
    const env = { ...variables, TWIN_CARDS: "1" };
    const flags = flagsIn(folder, ...SMALL, "--device", "cuda");
    const staged = await run(flags, { env });
    assert.equal(staged.code, 0, staged.stdout + staged.stderr);
    assert.match(
      staged.stderr,
      /ranks 0, 1 have one card \(twin:0\): what they exchange goes through memory of the host/,
    );
    assert.match(staged.stderr, /FSDP over 2 ranks \(shm\)/);
    const switched = { ...env, NCCL_MULTI_RANK_GPU_ENABLE: "1" };
    const old = await run([...flags, "--overwrite"], { env: switched });
    assert.match(old.stderr, /goes through memory of the host/);
    const joined = await run([...flags, "--out", folder.file("joined")], { env: { ...switched, TWIN_NCCL: "23000" } });
    assert.equal(joined.code, 0, joined.stdout + joined.stderr);
    assert.match(joined.stderr, /ranks 0, 1 have one card \(twin:0\): NCCL joins them there/);
    assert.match(joined.stderr, /FSDP over 2 ranks \(nccl\)/);
    const expected = losses(folder, "joined");
    for (const [step, loss] of losses(folder)) {
      const want = expected.get(step) ?? assert.fail(`step ${step}`);
      assert.ok(Math.abs(loss - want) <= 2e-4 * want, `step ${step}: loss ${loss}, by NCCL ${want}`);
    }
  },
);
