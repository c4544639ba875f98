/**
 * First values of parameters. Each element depends on the seed, its parameter's FQN and its place only: never on the number
 * of ranks, the cut into shards, or what else the model holds.
 *
 * @module
 */
import { float32 } from "../dtype.ts";
import { keyOf } from "../random.ts";
import { writeParameters } from "../tensor/write.ts";
import { ensureNames, type Module } from "./module.ts";

/**
 * Initializes every parameter below `root` as its `init` says, on this rank only what it owns. Every rank must call it.
 *
 * @param seed a non-negative integer
 */
export function initializeParameters(root: Module, seed: number): void {
  ensureNames(root);
  writeParameters(root.parameters(), (parameter, owned) => {
    const { kernels } = parameter.device;
    const { init, fqn, storage: { shard: { offset, length } } } = parameter;
    const stream = { n: length, key: keyOf(seed, fqn), offset, dst: owned };
    if (init.kind === "normal") kernels.normal({ ...stream, mean: init.mean, std: init.std });
    else if (init.kind === "uniform") kernels.uniform({ ...stream, low: init.low, high: init.high });
    else kernels.fill({ dtype: float32, n: length, value: init.value, dst: owned });
  });
}
