/**
 * What a user decides about memory of the host.
 *
 * @module
 */
import { requireKnownKeys } from "../config/known_keys.ts";
import type { StatePool } from "../device/state_pool.ts";

/** Where what a rank keeps lies while it is not computed with. */
export interface OffloadPolicy {
  /** Memory of the host. */
  readonly kind: "cpu";
  /**
   * Whether that memory is pinned, so that a card copies it beside compute; one unit without keeps all of the device's from it. It
   * is without effect where the device is the CPU.
   */
  readonly pinMemory: boolean;
  /** Where optimizer states rest between updates: in a file, or, undefined, in that memory too. */
  readonly optimizerStates: StatePool | undefined;
}

/** Options of {@link cpuOffloadPolicy}. */
export interface CpuOffloadOptions {
  /** Whether the memory is pinned. @default true */
  readonly pinMemory?: boolean;
  /** Where optimizer states rest; of `openFilePool`, whose caller disposes it after the optimizer. @default in host memory */
  readonly optimizerStates?: StatePool | undefined;
}

/**
 * Keeps parameter shards, their gradients and the optimizer's states in memory of the host (PyTorch's `CPUOffloadPolicy`). A gather
 * copies the shard to the device first, a reduction its result back, and the optimizer runs on the host.
 *
 * @param options what may be chosen
 * @example
 * ```ts
 * import { AdamW, cpuOffloadPolicy, fullyShard, launch, scope } from "fullyshard";
 * import { initializeParameters, Linear, zeros } from "fullyshard/nn";
 * await using run = await launch();
 * const layer = new Linear(run.device, 64, 64);
 * fullyShard(layer, { mesh: run.mesh, offloadPolicy: cpuOffloadPolicy() });
 * initializeParameters(layer, 0);
 * const optimizer = new AdamW(layer.parameters());
 * using _step = scope();
 * layer.call(zeros(run.device, [1, 64])).sum().backward();
 * optimizer.step();
 * if (layer.weight.grad?.device === run.device) throw new Error("not offloaded");
 * ```
 */
export function cpuOffloadPolicy(options: CpuOffloadOptions = {}): OffloadPolicy {
  requireKnownKeys("offload", options, { pinMemory: true, optimizerStates: true });
  const { pinMemory = true, optimizerStates } = options;
  return { kind: "cpu", pinMemory, optimizerStates };
}
