/**
 * What a user decides about sharding.
 *
 * @module
 */
import type { DeviceMesh } from "../comm/mesh.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { type DType, float32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { ranksOf } from "../parallel/ranks.ts";
import type { Parameter } from "../tensor/parameter.ts";

/** Dtypes of one unit (PyTorch's `MixedPrecisionPolicy`). Master weights are float32. */
export interface MixedPrecision {
  /** What parameters are gathered and computed in; default: float32. */
  readonly paramDtype?: DType;
  /** What gradients are produced and reduced in; default: float32. Sums are float32 either way. */
  readonly reduceDtype?: DType;
}

/** Options of `fullyShard`. */
export interface FullyShardOptions {
  /** The ranks that share the parameters: a mesh of one axis, or its group. */
  readonly mesh: DeviceMesh | ProcessGroup;
  /**
   * Whether parameters are freed after the forward and gathered again for the backward. Undefined: yes, except for the
   * root module, whose parameters the backward needs at once.
   */
  readonly reshardAfterForward?: boolean;
  readonly precision?: MixedPrecision;
  /**
   * Whether the backward gathers the next unit while one computes. Undefined: no. CPU transports copy when asked, so there
   * it only costs a second unit's memory.
   */
  readonly backwardPrefetch?: boolean;
  /** Parameters that stay as they are: neither sharded nor reduced. Another parallelism may take them. */
  readonly ignoredParameters?: Iterable<Parameter>;
}

/** A policy with nothing left open but the root rule. */
export interface ResolvedPolicy extends Required<MixedPrecision> {
  readonly group: ProcessGroup;
  readonly reshardAfterForward: boolean | undefined;
  readonly backwardPrefetch: boolean;
}

/**
 * Fills in the defaults.
 *
 * @throws {ArgumentError} for dtypes that are no floats
 * @throws {UnsupportedError} for a mesh of several axes, and for one axis of it
 */
export function resolvePolicy(options: FullyShardOptions): ResolvedPolicy {
  const { mesh, reshardAfterForward, precision = {}, backwardPrefetch = false } = options;
  const { paramDtype = float32, reduceDtype = float32 } = precision;
  for (const [name, dtype] of Object.entries({ paramDtype, reduceDtype })) {
    if (dtype.kind !== "float" || dtype.byteLength > 4) {
      throw new ArgumentError(`Cannot use ${dtype.name} as ${name}: it must be float32 or bfloat16`);
    }
  }
  const group = ranksOf(mesh, "shard");
  return { group, reshardAfterForward, paramDtype, reduceDtype, backwardPrefetch };
}
