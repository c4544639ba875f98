/** A pass in which ranks use different parameters. @module */
import { AdamW, fullyShard, gradNorm, replicate, scope, type Tensor } from "../../mod.ts";
import { initializeParameters, Linear, Module } from "../../doors/nn.ts";
import { ownedValues } from "../support/owned.ts";
import { WIDTH } from "./life_cycle_scenario.ts";
import { input } from "./modules.ts";
import type { Rank } from "./scenarios.ts";

/** Two halves, of which a rank may use one. */
class Halves extends Module<[x: Tensor, use: readonly string[]], Tensor> {
  readonly left: Linear;
  readonly right: Linear;
  readonly never: Linear;

  constructor(device: Rank["device"]) {
    super();
    this.left = new Linear(device, WIDTH, WIDTH);
    this.right = new Linear(device, WIDTH, WIDTH);
    this.never = new Linear(device, WIDTH, WIDTH);
  }

  forward(x: Tensor, use: readonly string[]): Tensor {
    const left = use.includes("left") ? this.left.call(x) : x;
    return use.includes("right") ? this.right.call(left) : left;
  }
}

/** The result of {@link unused} on every rank. */
export interface UnusedReport {
  /** Gradients by FQN: null where there is none. */
  readonly grads: readonly (readonly [fqn: string, zero: boolean | null])[];
  readonly norm: number;
  /** True if an AdamW step with decay moved the parameter. */
  readonly moved: readonly (readonly [fqn: string, moved: boolean])[];
}

/** Rank 0 uses both halves, the others the left one; nobody uses `never`. */
export function unused({ device, group }: Rank, mode: unknown): UnusedReport {
  const model = new Halves(device);
  if (mode === "fsdp") fullyShard(model, { mesh: group });
  if (mode === "ddp") replicate(model, { mesh: group });
  initializeParameters(model, 5);
  const optimizer = new AdamW(model.parameters(), { weightDecay: 0.5, learningRate: 0.1 });
  using _frame = scope();
  model.call(input(device, "x", 3, WIDTH), group.rank === 0 ? ["left", "right"] : ["left"]).sum().backward();
  const grads = [...model.namedParameters()].map(([fqn, { grad }]) =>
    [fqn, grad === undefined ? null : grad.numel > 0 && grad.toArray().every((value) => value === 0)] as const
  );
  const norm = gradNorm(model.parameters()).item();
  const before = [...model.parameters()].map(ownedValues);
  optimizer.step();
  const moved = [...model.namedParameters()].map(([fqn, parameter], i) => {
    const now = ownedValues(parameter);
    return [fqn, now.some((value, j) => value !== before[i]?.[j])] as const;
  });
  return { grads, norm, moved };
}
