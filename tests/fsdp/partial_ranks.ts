/** The ranks' code of `partial_test.ts`. @module */
import { fullyShard, scope, SGD } from "../../mod.ts";
import { initializeParameters } from "../../doors/nn.ts";
import { messageOf } from "../support/message.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { input, Stack } from "./modules.ts";

const WIDTH = 64;

/** The gathers and memory of a rank in a step. */
export interface KeepReport {
  readonly calls: readonly string[];
  /** Bytes of post-forward shards at the end of the forward. */
  readonly keptBytes: number;
  /** The same after an evaluation and an update. */
  readonly left: number;
}

/** A step whose blocks reshard as told. */
export function keepParts({ device, group }: WorldRank, reshardAfterForward: boolean | number): KeepReport {
  const model = new Stack(device, WIDTH, 2);
  for (const layer of model.layers) fullyShard(layer, { mesh: group, reshardAfterForward });
  fullyShard(model, { mesh: group });
  initializeParameters(model, 1);
  const calls: string[] = [];
  const stop = group.observe(({ kind, unit }, { name }) => {
    if (["gather", "all-gather", "reduce-scatter"].includes(kind)) calls.push(`${kind} ${unit} ${name}`);
  });
  const kept = (): number => {
    const owners = device.allocator.owners(1000).filter(({ owner }) => owner.endsWith(" post-forward shard"));
    return owners.reduce((sum, { bytes }) => sum + bytes, 0);
  };
  using _step = scope();
  const loss = model.call(input(device, "x", 2, WIDTH)).sum();
  const keptBytes = kept();
  loss.backward();
  stop();
  model.call(input(device, "evaluated", 2, WIDTH));
  new SGD(model.parameters(), { learningRate: 0.1 }).step();
  return { calls, keptBytes, left: kept() };
}

/** The errors for numbers that do not divide the ranks. */
export function refusals({ device, group }: WorldRank): readonly string[] {
  const model = new Stack(device, WIDTH, 1);
  const [layer] = model.layers;
  if (layer === undefined) return [];
  const asked = [3, 0, 1.5].map((reshardAfterForward) =>
    messageOf(() => fullyShard(layer, { mesh: group, reshardAfterForward }))
  );
  const later = fullyShard(model, { mesh: group });
  return [...asked, messageOf(() => later.setReshardAfterForward(8))];
}

rankFunctions(import.meta.url, { keepParts, refusals });
