/** The ranks' code of `shard_model_test.ts`: they train a small Llama by a plan, or replicated, and report everything. @module */
import type { Call } from "../../doors/comm.ts";
import { deviceMesh } from "../../src/comm/mesh.ts";
import { replicate } from "../../src/ddp/replicate.ts";
import type { MemoryPeak } from "../../src/train/dry_run.ts";
import { memoryPeak } from "../../src/train/dry_run.ts";
import { AdamW } from "../../src/optim/adamw.ts";
import type { FilePlan } from "../../src/plans/plan.ts";
import { shardModel } from "../../src/plans/shard_model.ts";
import { noGrad } from "../../src/autograd/mode.ts";
import { int32 } from "../../src/dtype.ts";
import { tensor } from "../../src/tensor/create.ts";
import { applyActivationCheckpointing } from "../../src/nn/activation_checkpointing.ts";
import { scope } from "../../src/tensor/scope.ts";
import { describeSharding } from "../../src/train/describe.ts";
import { openModel } from "../../src/train/open_model.ts";
import { trainStep } from "../../src/train/step.ts";
import { ownedValues } from "../support/owned.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** The model of these tests. */
export const SIZES: Readonly<Record<string, string | number | boolean>> = {
  ...{ model_type: "llama", vocab_size: 64, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2 },
  ...{ num_attention_heads: 2, num_key_value_heads: 1, max_position_embeddings: 16, initializer_range: 0.2 },
};

/** The training. */
export interface PlanCase {
  /** None: replicated. */
  readonly fsdpPlan?: FilePlan;
  readonly tied?: boolean;
  /** Keys that replace those of the model's config. */
  readonly config?: Readonly<Record<string, string | number | boolean | readonly number[]>>;
  readonly reshardAfterForward?: boolean;
  readonly backwardPrefetch?: boolean;
  readonly forwardPrefetch?: boolean;
  /** True if the first block's activations are checkpointed. */
  readonly checkpointed?: boolean;
  /** When the embedding and the first block are frozen, if they are. */
  readonly frozen?: "before sharding" | "after sharding";
  /** Replicas of what is sharded. */
  readonly replicas?: number;
}

/** The results of a rank. */
export interface PlanReport {
  readonly losses: readonly number[];
  readonly norms: readonly number[];
  /** This rank's values by FQN. */
  readonly weights: Readonly<Record<string, readonly number[]>>;
  /** Calls of the last step, as `kind phase unit`. */
  readonly calls: readonly string[];
  readonly notes: readonly string[];
  readonly description: string;
  readonly predicted: MemoryPeak | undefined;
  readonly measured: MemoryPeak;
  /** Bytes of whole parameters at the peak of a forward. */
  readonly gathered: number;
}

/** Trains three steps. */
export async function train({ device, group, rank, size }: WorldRank, data: PlanCase): Promise<PlanReport> {
  const { fsdpPlan, tied = false, replicas, checkpointed = false, frozen, config = {}, ...choices } = data;
  const notes: string[] = [];
  const model = await openModel({ device, group }, { ...SIZES, ...config, tie_word_embeddings: tied }, { seed: 5 });
  const mesh = replicas === undefined ? group : deviceMesh(group, { replicate: replicas, shard: size / replicas });
  if (checkpointed) applyActivationCheckpointing(model.layers, { every: 2, saveOps: ["linear"] });
  const freeze = (when: PlanCase["frozen"]): void => {
    if (frozen !== when) return;
    for (const [name, parameter] of model.namedParameters()) {
      if (/embed_tokens|layers\.0\./.test(name)) parameter.requiresGrad = false;
    }
  };
  freeze("before sharding");
  if (fsdpPlan === undefined) replicate(model, { mesh: group });
  else shardModel(model, { ...choices, fsdpPlan, mesh, note: (text) => notes.push(text) });
  freeze("after sharding");
  await model.load();
  const optimizer = new AdamW(model.parameters(), { learningRate: 0.01 });
  let calls: Call[] = [];
  group.observe((call) => void calls.push(call));
  const [losses, norms]: [number[], number[]] = [[], []];
  for (let step = 1; step <= 3; step++) {
    calls = [];
    if (step === 2) {
      device.allocator.resetPeak();
      device.offload.resetPeak();
    }
    const inputIds = Int32Array.from({ length: 16 }, (_, i) => (i * i + 7 * step + 3 * rank) % 64);
    const random = { seed: 5, firstSample: step * size + rank };
    const micro = { inputIds, labels: inputIds.map((id) => (id + 1) % 64), batch: 1, seq: 16, random };
    const { loss, gradNorm } = trainStep(
      { device, group, model, optimizer, maxGradNorm: 1 },
      { microBatches: [micro] },
      step,
    );
    losses.push(loss);
    norms.push(gradNorm);
  }
  const measured = memoryPeak({ device, group });
  const lastStep = calls.map(({ kind, phase, unit }) => `${kind} ${phase} ${unit}`);
  device.allocator.resetPeak();
  using _frame = scope();
  noGrad(() =>
    model.eval().call({
      inputIds: tensor(device, Int32Array.from({ length: 16 }, (_, i) => i), { shape: [1, 16], dtype: int32 }),
    })
  );
  const { gathered } = device.allocator.stats.peakTerms;
  const described = fsdpPlan === undefined ? undefined : describeSharding(model);
  const weights = [...model.namedParameters()].map(([name, parameter]) => [name, [...ownedValues(parameter)]] as const);
  return {
    ...{ losses, norms, notes, measured, gathered, description: String(described) },
    weights: Object.fromEntries(weights),
    calls: lastStep,
    predicted: await described?.predictPeak({ sequenceLength: 16 }),
  };
}

rankFunctions(import.meta.url, { train });
