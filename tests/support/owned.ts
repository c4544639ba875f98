/** The elements of a parameter that this rank keeps. @module */
import type { Parameter } from "../../src/tensor/parameter.ts";
import { ownedPtr } from "../../src/tensor/write.ts";

/** The elements that this rank keeps, in the order of its memory; none of a parameter that is not there. */
export function ownedValues(parameter: Parameter | undefined): Float32Array<ArrayBuffer> {
  const values = new Float32Array(parameter?.storage.shard.numel ?? 0);
  if (parameter !== undefined && values.length > 0) {
    parameter.storage.flatShard.device.copyOut(new Uint8Array(values.buffer), ownedPtr(parameter));
  }
  return values;
}
