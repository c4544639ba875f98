/** A Worker that plays one rank of a replicated stack. @module */
import { gradNorm, replicate, scope } from "../../mod.ts";
import { initializeParameters } from "../../doors/nn.ts";
import { openDevice } from "../../doors/device.ts";
import { openLoopback, serveRank } from "../../doors/testing.ts";
import { ReplicatedStorage } from "../../src/ddp/param.ts";
import { gradients, input, Stack } from "../fsdp/modules.ts";

/** The values that a rank saw. */
export interface DdpReport {
  /** The first weight as this rank initialized it. */
  readonly initial: readonly number[];
  /** The first weight after replication. */
  readonly broadcast: readonly number[];
  /** This rank's own gradients, parameter by parameter. */
  readonly own: readonly number[];
  /** Those that all have. */
  readonly reduced: readonly number[];
  readonly norm: number;
}

serveRank(async ({ rank, size, world, data }): Promise<DdpReport> => {
  if (typeof data !== "number") throw new Error("no width");
  const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 26, ranksOnHost: size });
  using group = openLoopback(world, rank, device);
  const model = new Stack(device, data, 2);
  initializeParameters(model, rank);
  const first = (): number[] => [...model.head.weight.toArray()];
  const initial = first();
  const replicated = replicate(model, { mesh: group, bucketBytes: 2000 });
  const broadcast = first();
  const flat = (): number[] => [...gradients(model.parameters()).values()].flatMap((list) => list ?? []);
  const run = (): number[] => {
    using _frame = scope();
    model.zeroGrad();
    model.call(input(device, `rank ${rank}`, 3, data)).sum().backward();
    return flat();
  };
  replicated.setRequiresGradientSync(false);
  const hidden = run();
  if (hidden.length > 0) throw new Error("a gradient that was not reduced shows");
  const own = [...model.parameters()].flatMap(({ storage }) =>
    storage instanceof ReplicatedStorage ? [...storage.sink.gradient()?.toArray() ?? []] : []
  );
  replicated.setRequiresGradientSync(true);
  const reduced = run();
  const norm = gradNorm(model.parameters()).item();
  group.barrier("end");
  return { initial, broadcast, own, reduced, norm };
});
