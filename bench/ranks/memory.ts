/**
 * A rank that takes two steps of the 7.9 M Llama under a policy: `memory.ts <case>`. Each compares the most memory it had in use at
 * once, term by term, with what a dry run of the same steps predicts; rank 0 prints it as JSON.
 *
 * @module
 */
import process from "node:process";
import {
  AdamW,
  bfloat16,
  type CausalLm,
  cpuOffloadPolicy,
  dryRun,
  float32,
  fullyShard,
  int32,
  replicate,
  scope,
  tensor,
} from "fullyshard";
import { type DeviceMesh, openProcessGroup, type ProcessGroup } from "fullyshard/comm";
import { type Device, openDevice } from "fullyshard/device";
import { buildModel, initializeParameters } from "fullyshard/nn";
import { LLAMA_8M } from "./models.ts";
import { memoryPeak } from "../../src/train/dry_run.ts";

const { config, seq } = LLAMA_8M;
const BATCH = 2;

interface Parts {
  readonly device: Device;
  readonly mesh: ProcessGroup | DeviceMesh;
}

/** Blocks and head are units of their own, so the root's unit has the embedding and the final norm. */
function shard(model: CausalLm, policy: string, mesh: Parts["mesh"]): void {
  if (policy === "ddp") return void replicate(model, { mesh });
  const paramDtype = policy === "fsdp-bf16" ? bfloat16 : float32;
  const options = {
    mesh,
    reshardAfterForward: policy !== "fsdp-keep",
    precision: { paramDtype, reduceDtype: float32 },
    ...policy === "fsdp-offload" ? { offloadPolicy: cpuOffloadPolicy() } : {},
  };
  const head = new Map(model.namedModules()).get("lm_head");
  if (head === undefined) throw new Error("a model without a head");
  for (const module of [...model.layers, head, model]) fullyShard(module, options);
}

function training(policy: string): (parts: Parts) => () => void {
  return ({ device, mesh }) => {
    const model = buildModel(device, config);
    shard(model, policy, mesh);
    initializeParameters(model, 0);
    const optimizer = new AdamW(model.parameters(), { learningRate: 1e-3 });
    return () => {
      using _step = scope();
      optimizer.zeroGrad();
      const ids = Int32Array.from({ length: BATCH * seq }, (_, i) => (i * 7919) % config.vocab_size);
      const x = tensor(device, ids, { shape: [BATCH, seq], dtype: int32 });
      model.call({ inputIds: x, labels: x }).loss?.backward();
      optimizer.step();
    };
  };
}

const name = process.argv[2] ?? "";
const policy = name.replace(/-w\d+$/, "");
const device = await openDevice("cpu", { ranksOnHost: Number(process.env["WORLD_SIZE"] ?? 1) });
using group = await openProcessGroup({ device });
const { rank, size: worldSize } = group;
const predicted = await dryRun(training(policy), { rank, worldSize, device });
const step = training(policy)({ device, mesh: group });
step();
device.allocator.resetPeak();
device.offload.resetPeak();
step();
const seen = memoryPeak({ device, group });
const { peakBytes, terms, offloaded } = predicted;
if (JSON.stringify(seen) !== JSON.stringify({ peakBytes, terms, offloaded })) {
  throw new Error(
    `rank ${rank}: predicted ${JSON.stringify({ peakBytes, terms, offloaded })}, seen ${JSON.stringify(seen)}`,
  );
}
if (rank === 0) process.stdout.write(`${JSON.stringify(seen)}\n`);
