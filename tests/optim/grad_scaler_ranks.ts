/** The ranks' code of `grad_scaler_test.ts`. @module */
import { AdamW, clipGradNorm, float16, float32, fullyShard, GradScaler, replicate, scope } from "../../mod.ts";
import { initializeParameters } from "../../doors/nn.ts";
import { input, Stack } from "../fsdp/modules.ts";
import { ownedValues } from "../support/owned.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** Rows of an input, and its width. */
const [ROWS, WIDTH] = [2, 20];

/** The values of a rank in each step. */
export interface ScaledStep {
  /** True if some weight of the rank's own shard has changed. */
  readonly changed: boolean;
  readonly norm: number;
  readonly scale: number;
  readonly optimizerSteps: number;
}

/** Four steps in float16, of which the last rank's gradients overflow in the second. */
export function trainScaled(
  { device, group, rank, size }: WorldRank,
  [parallelism, clips]: readonly [parallelism: "fsdp" | "ddp", clips: boolean],
): readonly ScaledStep[] {
  const model = new Stack(device, WIDTH, 2);
  const inner = { paramDtype: float16, reduceDtype: float32 };
  const precision = { ...inner, outputDtype: float32 };
  if (parallelism === "fsdp") {
    for (const layer of model.layers) fullyShard(layer, { mesh: group, precision: inner });
    fullyShard(model, { mesh: group, precision });
  }
  initializeParameters(model, 5);
  if (parallelism === "ddp") replicate(model, { mesh: group, precision });
  const parameters = [...model.parameters()];
  const optimizer = new AdamW(parameters);
  using scaler = new GradScaler(device, { initScale: 1024, growthInterval: 2 });
  return [0, 1, 2, 3].map((step) => {
    using _frame = scope();
    optimizer.zeroGrad();
    const before = parameters.flatMap((own) => [...ownedValues(own)]);
    const factor = step === 1 && rank === size - 1 ? 1e6 : 1;
    const loss = model.call(input(device, `${step} of ${rank}`, ROWS, WIDTH)).square().sum().mul(factor);
    scaler.scale(loss).backward();
    const norm = clips ? clipGradNorm(parameters, 1, { scaler }).item() : NaN;
    scaler.step(optimizer);
    scaler.update();
    const after = parameters.flatMap((own) => [...ownedValues(own)]);
    const optimizerSteps = Math.max(...parameters.map((own) => optimizer.stepsOf(own)));
    return { changed: after.some((value, i) => value !== before[i]), norm, scale: scaler.getScale(), optimizerSteps };
  });
}

rankFunctions(import.meta.url, { trainScaled });
