/**
 * Families of models on a CUDA device, made of doubles of NVIDIA's libraries: loss and gradients as on the CPU; rows of several
 * documents; and the refusal of one on a device that lacks a kernel of it.
 *
 * @module
 */
import assert from "node:assert/strict";
import { ZOO, zooModels } from "../../../scripts/zoo/families.ts";
import { openCudaDevice } from "../../../src/device/cuda/device.ts";
import { LAUNCHES } from "../../../src/device/cuda/launches.ts";
import { type Device, devicePtr } from "../../../src/device/device.ts";
import { openDevice } from "../../../src/device/registry.ts";
import { float32, int32 } from "../../../src/dtype.ts";
import { UnsupportedError } from "../../../src/errors.ts";
import { buildModel } from "../../../src/models/registry.ts";
import { initializeParameters } from "../../../src/nn/initialize.ts";
import { gradNorm } from "../../../src/optim/clip.ts";
import { tensor } from "../../../src/tensor/create.ts";
import { scope } from "../../../src/tensor/scope.ts";
import { buildCudaTwin, lackingForTwin, twinReports } from "../../native/cuda/build.ts";
import { requireNoLeak, requireSameAsAlone } from "../../support/documents.ts";
import { longTest, onlyInAll, sharedTest as test } from "../../support/share.ts";

const [BATCH, SEQ] = [1, 9];

/** The loss of a few tokens, and the norm of its gradients. */
function trial(device: Device, hfConfig: Readonly<Record<string, unknown>>): readonly [loss: number, norm: number] {
  const model = buildModel(device, hfConfig);
  initializeParameters(model, 3);
  using _frame = scope();
  const tokens = Int32Array.from({ length: BATCH * SEQ + 1 }, (_, i) => (7 * i * i + 3 * i + 1) % model.vocabSize);
  const shape = [BATCH, SEQ];
  const { loss } = model.call({
    inputIds: tensor(device, tokens.subarray(0, -1), { shape, dtype: int32 }),
    labels: tensor(device, tokens.subarray(1), { shape, dtype: int32 }),
    random: { seed: 5, firstSample: 2 },
  });
  assert.ok(loss !== undefined);
  loss.backward();
  return [loss.item(), gradNorm(model.parameters()).item()];
}

const lacking = lackingForTwin();
const twin = lacking === undefined ? await buildCudaTwin() : undefined;
const card = twin && await openCudaDevice(0, { environment: twin.environment, memoryBytes: 2 ** 29 });
const cpu = await openDevice("cpu", { memoryBytes: 2 ** 28 });

/** Families that together use each kernel that any family uses; among them latent attention, sinks, learned positions and convolutions. */
const MOST_KERNELS = [
  ...["deepseek_v2", "gemma2", "glm_moe_dsa", "gpt2", "gpt_oss", "lfm2", "mixtral", "modernbert-decoder", "phimoe"],
  ...["qwen3_5_moe", "qwen3_next"],
];

for (const family of [...MOST_KERNELS, ...onlyInAll(ZOO.filter((one) => !MOST_KERNELS.includes(one)))]) {
  test(`${family} has the CPU's loss and gradients on the twin of CUDA`, { skip: lacking }, () => {
    assert.ok(twin !== undefined && card !== undefined);
    const [{ hfConfig } = assert.fail()] = zooModels(family);
    const [expected, found] = [trial(cpu, hfConfig), trial(card, hfConfig)];
    for (const [i, value] of found.entries()) {
      const want = expected[i] ?? assert.fail();
      assert.ok(Math.abs(value - want) <= 1e-4 * Math.abs(want), `${["loss", "norm"][i]} ${value}, on the CPU ${want}`);
    }
    assert.equal(twinReports(twin), "");
  });
}

for (const family of ZOO) {
  longTest(`${family} keeps the documents of a row apart on the twin of CUDA`, { skip: lacking }, () => {
    assert.ok(twin !== undefined && card !== undefined);
    const [{ hfConfig } = assert.fail()] = zooModels(family);
    requireSameAsAlone(card, hfConfig);
    requireNoLeak(card, hfConfig, [0]);
    assert.equal(twinReports(twin), "");
  });
}

test(
  "a family is refused by kernel on a card for which one of its kernels is not written",
  { skip: lacking },
  async () => {
    assert.ok(twin !== undefined);
    const { router: { topk: _, ...router } = {}, ...others } = LAUNCHES;
    const options = { environment: twin.environment, memoryBytes: 2 ** 24, launches: { ...others, router } };
    const device = await openCudaDevice(0, options);
    assert.deepEqual([...device.traits.missingKernels], ["topk"]);
    const [{ hfConfig } = assert.fail()] = zooModels("glm_moe_dsa");
    assert.throws(() => buildModel(device, hfConfig), (error) => {
      assert.ok(error instanceof UnsupportedError, String(error));
      assert.match(error.message, /^Cannot make an indexer on cuda:0: it lacks the kernel 'topk'\. Use device 'cpu'$/);
      return true;
    });
    const nothing = { dtype: float32, rows: 0, cols: 0, k: 0, indices: devicePtr(0), x: devicePtr(0) };
    assert.throws(() => device.kernels.topk(nothing), {
      name: "UnsupportedError",
      message: "Cannot run kernel 'topk' on cuda:0: it is not written for CUDA yet",
    });
    device.dispose();
  },
);
