/** The ranks' code of `settings_test.ts`. @module */
import { fullyShard, replicate, scope } from "../../mod.ts";
import { initializeParameters } from "../../doors/nn.ts";
import { elementSlices } from "../../src/tensor/shard_layout.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { input, Stack } from "./modules.ts";

const WIDTH = 20;

/** The gradients of a rank where the root ignores the head, which is replicated by itself. */
export interface IgnoredReport {
  readonly kinds: readonly string[];
  /** Units that were reduced by reduce-scatter. */
  readonly reduced: readonly string[];
  /** True if each owned gradient equals the one of a model that is fully replicated. */
  readonly same: boolean;
}

/** Replicates the head, shards the rest, and compares with a model that is replicated. */
export function ignoreHead({ device, group, rank }: WorldRank): IgnoredReport {
  const [mixed, whole] = [new Stack(device, WIDTH, 1), new Stack(device, WIDTH, 1)];
  for (const model of [mixed, whole]) model.nameTree();
  replicate(mixed.head, { mesh: group });
  const ignoredParameters = [...mixed.head.parameters()];
  fullyShard(mixed, { mesh: group, ignoredParameters });
  replicate(whole, { mesh: group });
  const reduced: string[] = [];
  group.observe(({ kind, unit }) => void (kind === "reduce-scatter" && reduced.push(unit)));
  for (const model of [mixed, whole]) {
    initializeParameters(model, 5);
    using _frame = scope();
    model.call(input(device, `rank ${rank}`, 3, WIDTH)).sum().backward();
  }
  const others = [...whole.parameters()];
  const same = [...mixed.parameters()].every((parameter, i) => {
    const wholeGrad = others[i]?.grad?.toArray();
    if (wholeGrad === undefined || parameter.grad === undefined) return false;
    const own = parameter.grad.toArray();
    return elementSlices(parameter.storage.shard).every(({ offset, length, local }) =>
      own.subarray(local, local + length).every((value, k) => Object.is(value, wholeGrad[offset + k]))
    );
  });
  return { kinds: [...mixed.parameters()].map(({ storage }) => storage.kind), reduced, same };
}

rankFunctions(import.meta.url, { ignoreHead });
