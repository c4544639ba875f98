/** The ranks' code of `mixed_test.ts`. @module */
import { deviceMesh } from "../../src/comm/mesh.ts";
import { replicate } from "../../src/ddp/replicate.ts";
import { fullyShard } from "../../src/fsdp/fully_shard.ts";
import { Linear } from "../../src/nn/linear.ts";
import { initializeParameters } from "../../src/nn/initialize.ts";
import { Module } from "../../src/nn/module.ts";
import { clipGradNorm, gradNorm } from "../../src/optim/clip.ts";
import { SGD } from "../../src/optim/sgd.ts";
import { tensor } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { messageOf } from "../support/message.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** Two layers. */
class Two extends Module<[x: Tensor], Tensor> {
  readonly body: Linear;
  readonly head: Linear;

  constructor(device: WorldRank["device"]) {
    super();
    this.body = new Linear(device, 4, 4, { bias: false });
    this.head = new Linear(device, 4, 4, { bias: false });
  }

  forward(x: Tensor): Tensor {
    return this.head.call(this.body.call(x));
  }
}

/** The errors of `fullyShard` and `replicate` on one axis of a mesh. */
export function shardAxis({ group, device, size }: WorldRank, shape: Readonly<Record<string, number>>): string[] {
  const axis = deviceMesh(group, shape).axis("shard");
  if (axis.size === size) return [];
  return [fullyShard, replicate].map((parallelize) =>
    messageOf(() => parallelize(new Linear(device, 4, 4), { mesh: axis }))
  );
}

/** The values of a rank where the body is sharded and the head is as given. */
export interface MixedReport {
  readonly errors: readonly string[];
  readonly norm: number;
  readonly clipped: readonly number[];
}

/** Trains a step. */
export function mix({ group, device }: WorldRank, head: "plain" | "frozen" | "replicated"): MixedReport {
  using _frame = scope();
  const model = new Two(device);
  model.nameTree();
  fullyShard(model.body, { mesh: group });
  if (head === "replicated") replicate(model.head, { mesh: group });
  if (head === "frozen") { for (const parameter of model.head.parameters()) parameter.requiresGrad = false; }
  initializeParameters(model, 1);
  const parameters = [...model.parameters()];
  model.call(tensor(device, [1, 2, 3, 4], { shape: [1, 4] })).sum().backward();
  const optimizer = new SGD(parameters, { learningRate: 0.1 });
  const acts = [() => gradNorm(parameters), () => clipGradNorm(parameters, 1), () => optimizer.step()];
  if (head === "plain") return { errors: acts.map((act) => messageOf(act)), norm: 0, clipped: [] };
  const norm = clipGradNorm(parameters, 0.5).item();
  return { errors: [], norm, clipped: [...model.head.weight.grad?.toArray() ?? []] };
}

/** Two backwards that never reach the head, whose gradients are null. */
export function leaveOut({ group, device }: WorldRank, mode: "fsdp" | "ddp"): boolean {
  const model = new Two(device);
  (mode === "fsdp" ? fullyShard : replicate)(model, { mesh: group });
  initializeParameters(model, 1);
  for (let pass = 0; pass < 2; pass++) {
    using _frame = scope();
    model.zeroGrad();
    model.forward = (x) => model.body.call(x);
    model.call(tensor(device, [1, 2, 3, 4], { shape: [1, 4] })).sum().backward();
  }
  return model.head.weight.grad === undefined && model.body.weight.grad !== undefined;
}

rankFunctions(import.meta.url, { shardAxis, mix, leaveOut });
