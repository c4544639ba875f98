/**
 * First values of parameters. Each element depends on the seed, its parameter's FQN and its place only: never on the number
 * of ranks, the cut into shards, or what else the model holds.
 *
 * @module
 */
import { float32 } from "../dtype.ts";
import { Buffer } from "../device/buffer.ts";
import { convertElements } from "../device/convert.ts";
import { devicePtr } from "../device/device.ts";
import { keyOf } from "../random.ts";
import { elementSlices } from "../tensor/shard_layout.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { writeParameters } from "../tensor/write.ts";
import { type Module, requireModule } from "./module.ts";

/**
 * Initializes every parameter below `root` by its `init`, on each rank only its own shards, and every buffer. Every rank must
 * call it.
 *
 * @param seed a non-negative integer
 */
export function initializeParameters(root: Module, seed: number): void {
  requireModule("initialize", root);
  root.ensureNames();
  for (const [, buffer] of root.namedBuffers()) {
    buffer.materialize();
    buffer.device.kernels.fill({ dtype: buffer.dtype, n: buffer.numel, value: buffer.value, dst: buffer.ptr });
  }
  drawParameters(root.parameters(), seed);
}

/** Initializes parameters that have names as their `init` says, on this rank only what it owns. Every rank must call it. */
export function drawParameters(parameters: Iterable<Parameter>, seed: number): void {
  writeParameters(parameters, ({ init, fqn, storage: { flatShard: { device, dtype }, shard } }, values) => {
    const { kernels } = device;
    using wide = dtype === float32
      ? undefined
      : Buffer.allocate(device, shard.numel * float32.byteLength, `first values of '${fqn}'`);
    const owned = wide?.ptr ?? values;
    const key = keyOf(seed, fqn);
    for (const { offset, length, local } of elementSlices(shard)) {
      const part = { n: length, dst: devicePtr(owned + local * float32.byteLength) };
      if (init.kind === "normal") kernels.normal({ ...part, key, offset, mean: init.mean, std: init.std });
      else if (init.kind === "uniform") kernels.uniform({ ...part, key, offset, low: init.low, high: init.high });
      else if (init.kind === "logUniform") {
        kernels.uniform({ ...part, key, offset, low: init.low, high: init.high });
        kernels.unary({ ...part, dtype: float32, op: "log", p0: 0, p1: 0, src: part.dst });
      } else kernels.fill({ ...part, dtype: float32, value: init.value });
    }
    if (wide === undefined) return;
    convertElements(device, { dstDtype: dtype, srcDtype: float32, n: shard.numel, dst: values, src: wide.ptr });
  });
}
