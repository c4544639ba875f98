/**
 * All that is fuzzed, by name: records of `src/ops`, and functions that are made of several.
 *
 * @module
 */
import type { FuzzOp } from "./cases.ts";
import { COMPOSED_FUZZ } from "./composed_ops.ts";
import { ELEMENTWISE_FUZZ } from "./elementwise_ops.ts";
import { LAYER_FUZZ } from "./layer_ops.ts";

/** Fuzzed ops by name, in the order in which cases take them. */
export const FUZZ_OPS: ReadonlyMap<string, FuzzOp> = new Map([...ELEMENTWISE_FUZZ, ...LAYER_FUZZ, ...COMPOSED_FUZZ]);
