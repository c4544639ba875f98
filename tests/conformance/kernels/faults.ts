/**
 * Faults: what is out of range gives zeros, and the first one stands in the status record.
 *
 * @module
 */
import assert from "node:assert/strict";
import { float32, int32 } from "../../../src/dtype.ts";
import type { Bed } from "./bed.ts";
import { each, FLOATS, pick, type Properties, toBfloat16 } from "./case.ts";

const [VOCAB, WIDTH] = [6, 5];

/** The fault that the status record holds, which is then cleared. */
function fault(bed: Bed): unknown {
  const found = bed.device.status.read();
  bed.device.status.clear();
  return found;
}

/** Tests of kernels with values out of range. */
export const FAULT_PROPERTIES: Properties = {
  "embedding() writes zeros for ids out of range and notes the first": (bed) => {
    for (const { dtype } of FLOATS) {
      const w = bed.values(VOCAB * WIDTH).map(toBfloat16);
      const table = bed.put(dtype, w);
      const run = (ids: readonly number[]): number[] => {
        const [y, n] = [bed.room(dtype, ids.length * WIDTH), ids.length];
        bed.device.kernels.embedding({ dtype, n, vocab: VOCAB, cols: WIDTH, y, w: table, ids: bed.put(int32, ids) });
        return bed.get(dtype, y, n * WIDTH);
      };
      const rows = (ids: readonly number[]): number[] =>
        ids.flatMap((id) => each(WIDTH, (j) => id < 0 || id >= VOCAB ? 0 : pick(w, id * WIDTH + j)));
      assert.deepEqual(run([1, 2, 6, -1]), rows([1, 2, 6, -1]));
      assert.deepEqual(bed.device.status.read(), { kind: 1, place: 2, value: 6, limit: VOCAB });
      run([-5]); // the first fault stays
      assert.deepEqual(fault(bed), { kind: 1, place: 2, value: 6, limit: VOCAB });
      assert.deepEqual(run([-1, 2]), rows([-1, 2]));
      assert.deepEqual(fault(bed), { kind: 1, place: 0, value: -1, limit: VOCAB });
      assert.equal(bed.device.status.read(), undefined);
    }
  },
  "rope() writes zeros for positions beyond its tables and notes the first": (bed) => {
    for (const { dtype } of FLOATS) {
      const [n, table] = [3 * 4, bed.put(float32, each(4, () => 1))];
      const sizes = { batch: 1, seq: 3, heads: 1, headDim: 4, start: 0, half: 1, tableRows: 4, strideX: 4 };
      const args = { dtype, ...sizes, interleaved: false, inverse: false };
      const [x, y] = [bed.put(dtype, bed.values(n)), bed.room(dtype, n)];
      const run = (positions: readonly number[]): void =>
        bed.device.kernels.rope({ ...args, y, x, cos: table, sin: table, positions: bed.put(int32, positions) });
      run([3, -1, 4]);
      const got = bed.get(dtype, y, n);
      assert.deepEqual(got.slice(4), each(8, () => 0));
      assert.ok(got.slice(0, 4).every((value) => value !== 0 && !Number.isNaN(value)));
      assert.deepEqual(fault(bed), { kind: 3, place: 1, value: -1, limit: 4 });
    }
  },
  "crossEntropy() gives 0 for labels out of range and notes the first": (bed) => {
    for (const { dtype } of FLOATS) {
      const logits = bed.put(dtype, bed.values(12));
      const run = (labels: readonly number[]): { losses: number[]; dlogits: number[] } => {
        const [losses, dlogits] = [bed.room(float32, 3), bed.room(dtype, 12)];
        const attrs = { ignoreIndex: -100, firstRow: 10, labelSmoothing: 0, zLoss: 0 };
        const args = { dtype, rows: 3, cols: 4, ...attrs, losses, dlogits, logits };
        bed.device.kernels.crossEntropy({ ...args, labels: bed.put(int32, labels) });
        return { losses: bed.get(float32, losses, 3), dlogits: bed.get(dtype, dlogits, 12) };
      };
      const { losses, dlogits } = run([0, 4, -1]);
      assert.ok(pick(losses, 0) > 0 && pick(dlogits, 0) < 0);
      assert.deepEqual([losses.slice(1), dlogits.slice(4)], [[0, 0], each(8, () => 0)]);
      assert.deepEqual(fault(bed), { kind: 2, place: 11, value: 4, limit: 4 });
      run([0, -100, 3]);
      assert.equal(bed.device.status.read(), undefined, "an ignored label is no fault");
    }
  },
};
