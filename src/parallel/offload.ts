/**
 * Offload policies: parameter shards, gradients and optimizer states in memory of the host.
 *
 * @module
 */
import { requireSwitch } from "../config/known_values.ts";
import { requireKnownKeys } from "../config/known_keys.ts";
import type { StatePool } from "../device/state_pool.ts";

/** The place of a rank's shards, gradients and optimizer states while nothing computes with them. */
export interface OffloadPolicy {
  /** The place: memory of the host. */
  readonly kind: "cpu";
  /**
   * Pins that memory, so that a GPU copies it while it computes. A unit with false leaves all offloaded memory of its device
   * unpinned. It has no effect on the CPU.
   */
  readonly pinMemory: boolean;
  /** A file for optimizer states between updates; undefined: they lie in memory of the host, too. */
  readonly optimizerStates: StatePool | undefined;
}

/** Options of {@link cpuOffloadPolicy}. */
export interface CpuOffloadOptions {
  /** Pins the memory. @default true */
  readonly pinMemory?: boolean;
  /** A file for optimizer states, from `openFilePool`; dispose it after the optimizer. @default in host memory */
  readonly optimizerStates?: StatePool | undefined;
}

/**
 * Keeps parameter shards, their gradients and the optimizer's states in memory of the host (PyTorch's `CPUOffloadPolicy`). A gather
 * first copies the shard to the device. A reduction copies its result to the host, where the optimizer updates the shard.
 *
 * @param options pinned memory, and a file for optimizer states
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
  requireSwitch("offload", "pinMemory", pinMemory);
  return { kind: "cpu", pinMemory, optimizerStates };
}
