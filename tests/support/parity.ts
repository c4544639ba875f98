/** Trainings that must give the same bits. @module */
import assert from "node:assert/strict";
import { compare, type ParityCase, runCases, type WholeTrace } from "../../scripts/parity/traces.ts";

/** Fails unless a trace has the bits of another. */
export function assertSameBits(reference: WholeTrace, trace: WholeTrace): void {
  const pair = compare(reference, trace);
  assert.deepEqual(pair, { ...pair, max_ulp_loss: 0, max_ulp_grad_norm: 0, max_ulp_weights: 0 });
}

/** Runs cases as Workers, and fails unless all have the bits of the first, which is returned. */
export async function trainAlike(cases: readonly ParityCase[]): Promise<WholeTrace> {
  const [reference, ...others] = await runCases(cases, "wasm");
  assert.ok(reference !== undefined && others.length === cases.length - 1 && others.length > 0);
  for (const trace of others) assertSameBits(reference, trace);
  return reference;
}
