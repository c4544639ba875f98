/**
 * Attention of a layer round the ring of a context axis.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import { UnsupportedError } from "../errors.ts";
import type { AttentionFunction } from "../nn/functional.ts";
import { applyOne } from "../tensor/apply.ts";
import { ringAttentionOp } from "./ring_op.ts";

/**
 * Attention of this rank's two parts of each row to keys and values that go round the ranks. It is within rounding of one rank's, and has
 * the same bits in each run.
 *
 * @param unit name of the layer, for messages
 * @throws {UnsupportedError} in a call with a mask of keys or dropout, or that is not causal
 */
export function attentionRoundRing(group: ProcessGroup, unit: string): AttentionFunction {
  return (q, k, v, { causal, dropout, ...options }, keyMask, sinks, documentStarts) => {
    const refused = keyMask !== undefined
      ? "a mask of keys"
      : !causal
      ? "keys behind each query"
      : dropout !== undefined && dropout.p > 0
      ? "dropout"
      : undefined;
    if (refused !== undefined) {
      throw new UnsupportedError(
        `Cannot attend round a ring in '${unit}' with ${refused}: share positions by commStrategy "allgather", or leave it out`,
      );
    }
    const inputs = [q, k, v, documentStarts, sinks].filter((input) => input !== undefined);
    const has = { documents: documentStarts !== undefined, sinks: sinks !== undefined };
    return applyOne(ringAttentionOp, inputs, { ...options, ...has, group, unit });
  };
}
