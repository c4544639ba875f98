/**
 * Micro-batches cut so that a token's loss has the same bits whatever rows are beside its own.
 *
 * Note [Rows of an evaluation] Kernels compute each row of a product by itself, but the CPU's kernels sum products of at most 3 rows in
 * another order (`wasm/src/matmul.rs`, `is_skinny`). So a micro-batch of fewer than 4 tokens is padded. How many rows an expert gets
 * depends on all tokens of a micro-batch, so models with experts are given one row at a time, without its padding. Under context
 * parallelism a rank has a part of a row: there the numbers of models with experts are those of one rank within rounding.
 *
 * @module
 */
import { at } from "../at.ts";
import type { MicroBatch } from "../data/micro_batch.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { Experts } from "../nn/experts.ts";
import { IGNORE_INDEX } from "../nn/functional.ts";

/** Tokens from which on products of all rows are summed alike. */
const LEAST_TOKENS = 4;

/** The rows of micro-batches as an evaluation computes them; see Note [Rows of an evaluation]. */
export function evaluationRows(model: CausalLm, microBatches: readonly MicroBatch[]): readonly MicroBatch[] {
  return hasExperts(model) ? microBatches.flatMap(singleRows) : microBatches.map(padded);
}

function hasExperts(model: CausalLm): boolean {
  for (const [, module] of model.namedModules()) if (module instanceof Experts) return true;
  return false;
}

/** Each row of a micro-batch as one of its own, without padding. */
function singleRows({ batch, seq, inputIds, labels, documentStarts, lengths }: MicroBatch): MicroBatch[] {
  return Array.from({ length: batch }, (_, row) => {
    const length = lengths === undefined ? seq : at(lengths, row, "length of row");
    const part = (all: Int32Array): Int32Array => all.subarray(row * seq, row * seq + length);
    return {
      inputIds: part(inputIds),
      labels: part(labels),
      documentStarts: documentStarts && part(documentStarts),
      ...{ batch: 1, seq: length },
    };
  });
}

/** Adds a token of padding after another to the row of a micro-batch that has too few. */
function padded(microBatch: MicroBatch): MicroBatch {
  const { batch, seq, inputIds, labels, documentStarts } = microBatch;
  if (batch * seq >= LEAST_TOKENS) return microBatch;
  const to = LEAST_TOKENS;
  const widened = (all: Int32Array, filled: (row: number) => number): Int32Array =>
    Int32Array.from({ length: batch * to }, (_, i) => {
      const [row, place] = [Math.floor(i / to), i % to];
      return place < seq ? at(all, row * seq + place, "token") : filled(row);
    });
  return {
    ...microBatch,
    inputIds: widened(inputIds, () => 0),
    labels: widened(labels, () => IGNORE_INDEX),
    documentStarts: documentStarts &&
      widened(documentStarts, (row) => at(documentStarts, (row + 1) * seq - 1, "start")),
    lengths: microBatch.lengths ?? new Int32Array(batch).fill(seq),
    seq: to,
  };
}
