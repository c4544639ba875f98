/** The ranks' code of `accumulation_test.ts`. @module */
import { asyncSave, CheckpointStager, loadCheckpoint, saveCheckpoint } from "../../doors/checkpoint.ts";
import { initializeParameters } from "../../doors/nn.ts";
import { AdamW, fullyShard, replicate, scope, type Tensor } from "../../mod.ts";
import { saveHfDirectory } from "../../src/checkpoint/hugging_face/save.ts";
import { type DirectoryTensor, plainDirectoryTensors } from "../../src/checkpoint/state_dict/state_dict.ts";
import { input, Stack } from "../fsdp/modules.ts";
import { ownedValues } from "../support/owned.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

const WIDTH = 20;

/** A stack that checkpoints hold. */
class SavedStack extends Stack {
  readonly hfConfig = {};
  readonly tiedNames: ReadonlyMap<string, string> = new Map();

  directoryTensors(): Iterable<DirectoryTensor> {
    return plainDirectoryTensors(this);
  }
}

/** The way to save between the micro-batches of a step, and the parallelism of the model. */
export interface Interruption {
  readonly directory: string;
  readonly mode: "fsdp" | "ddp" | "plain";
  readonly what: "nothing" | "checkpoint" | "async" | "folder";
}

/** Values and gradients after three steps of three micro-batches, and what was saved in the second one, loaded again. */
export interface InterruptedReport {
  readonly end: string;
  /** True if the saved values are those before that step. */
  readonly saved: boolean;
}

/** Saves in the middle of an accumulation. */
export async function interrupt(rank: WorldRank, { directory, mode, what }: Interruption): Promise<InterruptedReport> {
  const { device, group } = rank;
  const build = (): { model: SavedStack; handle: { setRequiresGradientSync(sync: boolean): void } | undefined } => {
    const model = new SavedStack(device, WIDTH, 2);
    model.nameTree();
    if (mode === "fsdp") { for (const layer of model.layers) fullyShard(layer, { mesh: group }); }
    const handle = mode === "fsdp"
      ? fullyShard(model, { mesh: group })
      : mode === "ddp"
      ? replicate(model, { mesh: group })
      : undefined;
    return { model, handle };
  };
  const { model, handle } = build();
  initializeParameters(model, 5);
  const values = (of: SavedStack): string =>
    JSON.stringify([...of.parameters()].map((parameter) => [...ownedValues(parameter)]));
  const optimizer = new AdamW(model.parameters());
  using stager = new CheckpointStager(device);
  let [before, saving]: [string, PromiseLike<unknown> | undefined] = ["", undefined];
  for (let step = 1; step <= 3; step++) {
    if (step === 2) before = values(model);
    for (let i = 0; i < 3; i++) {
      handle?.setRequiresGradientSync(i === 2);
      {
        using _frame = scope();
        const x: Tensor = input(device, `${step} ${i} of rank ${rank.rank}`, 3, WIDTH);
        model.call(x).sum().backward();
      }
      if (step !== 2 || i === 2) continue;
      const common = { directory, step: i + 1, model, optimizer, group, state: {} };
      if (what === "checkpoint") await saveCheckpoint(common);
      if (what === "folder") await saveHfDirectory(model, `${directory}/folder`, group);
      if (what === "async") {
        await saving;
        saving = asyncSave({ ...common, stager });
      }
    }
    optimizer.step();
    optimizer.zeroGrad();
  }
  await saving;
  const end = values(model);
  if (what !== "checkpoint" && what !== "async") return { end, saved: true };
  const again = build();
  await loadCheckpoint({ directory, model: again.model, optimizer: new AdamW(again.model.parameters()), group });
  return { end, saved: values(again.model) === before };
}

rankFunctions(import.meta.url, { interrupt });
