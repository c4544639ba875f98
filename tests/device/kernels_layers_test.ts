/**
 * Softmax, norms, rotary positions, embeddings, cross-entropy and SwiGLU against formulas in float64, gradients against
 * central differences of those formulas.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { bfloat16, float32, int32 } from "../../src/dtype.ts";
import type { DType } from "../../src/dtype.ts";
import { NO_PTR } from "../../src/device/device.ts";
import { Bed, close, FLOATS, fround, pick, sum } from "./kernels_bed.ts";

/** Nearest bfloat16 of a finite value. */
function toBfloat16(x: number): number {
  const word = new Uint32Array(Float32Array.of(x).buffer);
  word[0] = ((word[0] ?? 0) + 0x7fff + (((word[0] ?? 0) >>> 16) & 1)) & 0xffff0000;
  return new Float32Array(word.buffer)[0] ?? 0;
}

/** Gradient of `sum(dy * f(x))` by central differences of fourth order. */
function gradient(x: readonly number[], dy: readonly number[], f: (x: readonly number[]) => number[]): number[] {
  return x.map((v, i) => {
    const h = 1e-4;
    const at = (d: number): number => {
      const moved = [...x];
      moved[i] = v + d;
      return f(moved).reduce((total, y, j) => total + y * pick(dy, j), 0);
    };
    return (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
  });
}

function softmaxRow(x: readonly number[]): number[] {
  const top = Math.max(...x);
  const e = x.map((v) => Math.exp(v - top));
  const total = e.reduce((a, b) => a + b, 0);
  return e.map((v) => v / total);
}

/** Applies a function of one row to each. */
function byRow(x: readonly number[], cols: number, f: (row: number[], r: number) => number[]): number[] {
  return Array.from({ length: x.length / cols }, (_, r) => f(x.slice(r * cols, (r + 1) * cols), r)).flat();
}

test("softmax() and its backward agree with float64", async () => {
  const bed = await Bed.open();
  for (const { dtype, epsilon } of FLOATS) {
    for (const cols of [1, 2, 3, 4, 7, 64, 129]) {
      const { at, x } = bed.random(dtype, 3 * cols, -6, 6);
      const y = bed.room(dtype, 3 * cols);
      bed.kernels.softmax(dtype, y, at, 3, cols);
      close(
        bed.get(dtype, y, 3 * cols),
        byRow(x, cols, softmaxRow),
        epsilon + 1e-6,
        0,
        `softmax ${dtype.name} ${cols}`,
      );
      const stored = bed.get(dtype, y, 3 * cols);
      const { at: dyAt, x: dy } = bed.random(dtype, 3 * cols);
      const dx = bed.room(dtype, 3 * cols);
      bed.kernels.softmaxBackward(dtype, dx, dyAt, y, 3, cols);
      const want = byRow(stored, cols, (p, r) => {
        const dot = sum(cols, (j) => pick(p, j) * pick(dy, r * cols + j));
        return p.map((v, j) => v * (pick(dy, r * cols + j) - dot));
      });
      close(bed.get(dtype, dx, 3 * cols), want, epsilon + 1e-6, 2e-7, `softmaxBackward ${dtype.name} ${cols}`);
      bed.kernels.softmax(dtype, at, at, 3, cols);
      assert.deepEqual(bed.get(dtype, at, 3 * cols), stored, "in place");
    }
  }
});

test("softmax() takes huge, hidden and NaN scores", async () => {
  const bed = await Bed.open();
  const run = (x: number[]): number[] => {
    const at = bed.put(float32, x);
    bed.kernels.softmax(float32, at, at, 1, x.length);
    return bed.get(float32, at, x.length);
  };
  assert.deepEqual(run([3e38, -3e38, 3e38, -Infinity, -3e38]), [0.5, 0, 0.5, 0, 0]);
  for (let place = 0; place < 6; place++) {
    const x = [1, 2, 3, 4, 5, 6];
    x[place] = NaN;
    assert.ok(run(x).every(Number.isNaN), `NaN at ${place}`);
  }
});

test("rmsNorm() rounds before the weight, and its backward agrees", async () => {
  const bed = await Bed.open();
  const [rows, eps] = [3, 1e-5];
  for (const { dtype, epsilon } of FLOATS) {
    const round = dtype === bfloat16 ? toBfloat16 : fround;
    for (const cols of [1, 3, 8, 33]) {
      for (const weighted of [true, false]) {
        const { at, x } = bed.random(dtype, rows * cols, -2, 3);
        const w = bed.random(dtype, cols, 0.5, 2);
        const wAt = weighted ? w.at : NO_PTR;
        const weight = (j: number): number => weighted ? pick(w.x, j) : 1;
        const [y, rstd] = [bed.room(dtype, rows * cols), bed.room(float32, rows)];
        bed.kernels.rmsNorm(dtype, y, rstd, at, wAt, rows, cols, eps);
        const scales = byRow(x, cols, (row) => [1 / Math.sqrt(sum(cols, (j) => pick(row, j) ** 2) / cols + eps)]);
        close(bed.get(float32, rstd, rows), scales, 1e-7, 0, "rstd");
        const kept = bed.get(float32, rstd, rows);
        const want = byRow(x, cols, (row, r) => row.map((v, j) => round(fround(v * pick(kept, r))) * weight(j)));
        close(bed.get(dtype, y, rows * cols), want, epsilon * 1.01, 0, `rmsNorm ${dtype.name} ${cols}`);

        const { at: dyAt, x: dy } = bed.random(dtype, rows * cols);
        const [dx, dw] = [bed.room(dtype, rows * cols), bed.room(float32, cols)];
        bed.kernels.rmsNormBackward(dtype, dx, dw, dyAt, at, wAt, rstd, rows, cols);
        const f = (v: readonly number[]): number[] =>
          byRow(v, cols, (row) => {
            const scale = 1 / Math.sqrt(sum(cols, (j) => pick(row, j) ** 2) / cols + eps);
            return row.map((u, j) => u * scale * weight(j));
          });
        close(bed.get(dtype, dx, rows * cols), gradient(x, dy, f), 2 * epsilon + 1e-6, 2e-6, `rms dx ${dtype.name}`);
        const wantW = Array.from(
          { length: cols },
          (_, j) => sum(rows, (r) => pick(dy, r * cols + j) * round(fround(pick(x, r * cols + j) * pick(kept, r)))),
        );
        close(bed.get(float32, dw, cols), wantW, 2e-7, 2e-7, `rms dw ${dtype.name}`);
        const [only, alone] = [bed.get(dtype, dx, rows * cols), bed.room(dtype, rows * cols)];
        bed.kernels.rmsNormBackward(dtype, alone, NO_PTR, dyAt, at, wAt, rstd, rows, cols);
        assert.deepEqual(bed.get(dtype, alone, rows * cols), only);
        bed.kernels.rmsNormBackward(dtype, NO_PTR, dw, dyAt, at, wAt, rstd, rows, cols);
      }
    }
  }
});

test("layerNorm() and its backward agree, far from zero too", async () => {
  const bed = await Bed.open();
  const [rows, eps] = [3, 1e-5];
  for (const { dtype, epsilon } of FLOATS) {
    for (const cols of [3, 5, 8, 131]) {
      for (const weighted of [true, false]) {
        const { at, x } = bed.random(dtype, rows * cols, -2, 3);
        const [w, b] = [bed.random(dtype, cols, 0.5, 2), bed.random(dtype, cols)];
        const [wAt, bAt] = weighted ? [w.at, b.at] : [NO_PTR, NO_PTR];
        const [y, mean, rstd] = [bed.room(dtype, rows * cols), bed.room(float32, rows), bed.room(float32, rows)];
        bed.kernels.layerNorm(dtype, y, mean, rstd, at, wAt, bAt, rows, cols, eps);
        const f = (v: readonly number[]): number[] =>
          byRow(v, cols, (row) => {
            const center = row.reduce((p, q) => p + q, 0) / cols;
            const scale = 1 / Math.sqrt(sum(cols, (j) => (pick(row, j) - center) ** 2) / cols + eps);
            return row.map((u, j) =>
              (u - center) * scale * (weighted ? pick(w.x, j) : 1) + (weighted ? pick(b.x, j) : 0)
            );
          });
        close(bed.get(dtype, y, rows * cols), f(x), epsilon + 5e-7, 2e-6, `layerNorm ${dtype.name} ${cols}`);
        close(
          bed.get(float32, mean, rows),
          byRow(x, cols, (r) => [r.reduce((p, q) => p + q, 0) / cols]),
          1e-7,
          1e-9,
          "mean",
        );

        const { at: dyAt, x: dy } = bed.random(dtype, rows * cols);
        const [dx, dw, db] = [bed.room(dtype, rows * cols), bed.room(float32, cols), bed.room(float32, cols)];
        bed.kernels.layerNormBackward(dtype, dx, dw, db, dyAt, at, wAt, mean, rstd, rows, cols);
        close(
          bed.get(dtype, dx, rows * cols),
          gradient(x, dy, f),
          2 * epsilon + 2e-6,
          5e-6,
          `layer dx ${dtype.name} ${cols}`,
        );
        const [means, scales] = [bed.get(float32, mean, rows), bed.get(float32, rstd, rows)];
        const column = (g: (at: number, r: number) => number): number[] =>
          Array.from({ length: cols }, (_, j) => sum(rows, (r) => g(r * cols + j, r)));
        const wantW = column((i, r) => pick(dy, i) * (pick(x, i) - pick(means, r)) * pick(scales, r));
        close(bed.get(float32, dw, cols), wantW, 1e-6, 1e-6, "layer dw");
        close(bed.get(float32, db, cols), column((i) => pick(dy, i)), 1e-7, 1e-7, "layer db");
        const only = bed.get(dtype, dx, rows * cols);
        bed.kernels.layerNormBackward(dtype, dx, NO_PTR, NO_PTR, dyAt, at, wAt, mean, rstd, rows, cols);
        assert.deepEqual(bed.get(dtype, dx, rows * cols), only);
        bed.kernels.layerNormBackward(dtype, NO_PTR, dw, db, dyAt, at, wAt, mean, rstd, rows, cols);
      }
    }
  }
  // Far from zero the variance must not drown.
  const x = bed.values(64).map((v) => fround(v + 10_000));
  const [y, mean, rstd] = [bed.room(float32, 64), bed.room(float32, 1), bed.room(float32, 1)];
  bed.kernels.layerNorm(float32, y, mean, rstd, bed.put(float32, x), NO_PTR, NO_PTR, 1, 64, 0);
  const center = x.reduce((a, b) => a + b, 0) / 64;
  const deviation = Math.sqrt(sum(64, (i) => (pick(x, i) - center) ** 2) / 64);
  close(bed.get(float32, rstd, 1), [1 / deviation], 1e-6, 0, "rstd far from zero");
});

test("rope() turns the first dims of each head, and back", async () => {
  const bed = await Bed.open();
  const [batch, seq, heads] = [2, 3, 2];
  for (const { dtype, epsilon } of FLOATS) {
    for (const [headDim, rotaryDim] of [[8, 8], [10, 6], [4, 2], [7, 4], [34, 34]]) {
      assert.ok(headDim !== undefined && rotaryDim !== undefined);
      const half = rotaryDim / 2;
      const stride = heads * headDim + 5;
      const { at, x } = bed.random(dtype, batch * seq * stride);
      const angles = bed.values(7 * half, -3, 3);
      const [cos, sin] = [bed.put(float32, angles.map(Math.cos)), bed.put(float32, angles.map(Math.sin))];
      for (const positions of [undefined, [4, 0, 6, 1, 1, 5]]) {
        const at32 = positions === undefined ? NO_PTR : bed.put(int32, positions);
        for (const inverse of [false, true]) {
          const total = batch * seq * heads * headDim;
          const y = bed.room(dtype, total);
          bed.kernels.rope(dtype, y, at, stride, cos, sin, at32, batch, seq, heads, headDim, rotaryDim, inverse);
          const want = Array.from({ length: total }, (_, flat) => {
            const i = flat % headDim;
            const token = Math.floor(flat / (heads * headDim));
            const head = token * stride + (Math.floor(flat / headDim) % heads) * headDim;
            if (i >= rotaryDim) return pick(x, head + i);
            const angle = pick(angles, (positions?.[token] ?? token % seq) * half + i % half) * (inverse ? -1 : 1);
            const [a, b] = [pick(x, head + i % half), pick(x, head + i % half + half)];
            return i < half ? a * Math.cos(angle) - b * Math.sin(angle) : b * Math.cos(angle) + a * Math.sin(angle);
          });
          close(bed.get(dtype, y, total), want, epsilon, 2e-7 + (dtype === bfloat16 ? 1e-9 : 0), `rope ${dtype.name}`);
        }
      }
    }
  }
});

test("ropeTable() takes the cosine of the float32 angle", async () => {
  const bed = await Bed.open();
  const frequencies = [1, 0.1, 0.01, 1e-4].map(fround);
  const [cos, sin] = [bed.room(float32, 4000), bed.room(float32, 4000)];
  bed.kernels.ropeTable(cos, sin, bed.put(float32, frequencies), 1000, 4, 1.5);
  const angle = (i: number): number => fround(Math.floor(i / 4) * pick(frequencies, i % 4));
  close(bed.get(float32, cos, 4000), Array.from({ length: 4000 }, (_, i) => 1.5 * Math.cos(angle(i))), 2e-7, 0, "cos");
  close(bed.get(float32, sin, 4000), Array.from({ length: 4000 }, (_, i) => 1.5 * Math.sin(angle(i))), 2e-7, 0, "sin");
});

test("embedding() gathers rows and names the first id out of range", async () => {
  const bed = await Bed.open();
  const [vocab, cols] = [6, 5];
  for (const { dtype } of FLOATS) {
    const { at: w, x } = bed.random(dtype, vocab * cols);
    const ids = [5, 0, 3, 3];
    const y = bed.room(dtype, 4 * cols);
    assert.equal(bed.kernels.embedding(dtype, y, w, bed.put(int32, ids), 4, vocab, cols), -1);
    assert.deepEqual(bed.get(dtype, y, 4 * cols), ids.flatMap((id) => x.slice(id * cols, (id + 1) * cols)));
    const before = bed.bytes(dtype, y, 4 * cols);
    assert.equal(bed.kernels.embedding(dtype, y, w, bed.put(int32, [1, 2, 6, -1]), 4, vocab, cols), 2);
    assert.equal(bed.kernels.embedding(dtype, y, w, bed.put(int32, [-1, 2, 6, 1]), 4, vocab, cols), 0);
    assert.deepEqual(bed.bytes(dtype, y, 4 * cols), before, "nothing is written");

    const { at: dyAt, x: dy } = bed.random(dtype, 4 * cols);
    const dw = bed.room(float32, vocab * cols);
    for (const padding of [-1, 3]) {
      bed.kernels.embeddingBackward(dtype, dw, dyAt, bed.put(int32, ids), 4, vocab, cols, padding);
      const want = Array.from(
        { length: vocab * cols },
        (_, at) =>
          sum(4, (i) => ids[i] === Math.floor(at / cols) && ids[i] !== padding ? pick(dy, i * cols + at % cols) : 0),
      );
      close(bed.get(float32, dw, vocab * cols), want, 1e-7, 0, "embeddingBackward");
    }
  }
});

function crossEntropyCase(bed: Bed, dtype: DType, epsilon: number, cols: number): void {
  const rows = 4;
  const scale = 0.37;
  const { at, x } = bed.random(dtype, rows * cols, -5, 5);
  const labels = [0, cols - 1, -100, Math.floor(cols / 2)];
  const labelsAt = bed.put(int32, labels);
  const [losses, dlogits] = [bed.room(float32, rows), bed.room(dtype, rows * cols)];
  assert.equal(bed.kernels.crossEntropy(dtype, losses, dlogits, at, labelsAt, rows, cols, -100, scale), -1);
  const wantLoss = labels.map((label, r) => {
    if (label === -100) return 0;
    return -Math.log(pick(softmaxRow(x.slice(r * cols, (r + 1) * cols)), label));
  });
  close(bed.get(float32, losses, rows), wantLoss, 2e-7, 2e-7, `loss ${dtype.name} ${cols}`);
  const want = byRow(x, cols, (row, r) => {
    if (labels[r] === -100) return row.map(() => 0);
    return softmaxRow(row).map((p, j) => (p - Number(j === labels[r])) * fround(scale));
  });
  close(bed.get(dtype, dlogits, rows * cols), want, epsilon + 5e-7, 1e-7, `dlogits ${dtype.name} ${cols}`);
  const kept = bed.get(dtype, dlogits, rows * cols);
  const alone = bed.room(float32, rows);
  bed.kernels.crossEntropy(dtype, alone, NO_PTR, at, labelsAt, rows, cols, -100, scale);
  close(bed.get(float32, alone, rows), wantLoss, 2e-7, 2e-7, "loss without gradient");
  bed.kernels.crossEntropy(dtype, losses, at, at, labelsAt, rows, cols, -100, scale);
  assert.deepEqual(bed.get(dtype, at, rows * cols), kept, "gradient over the logits");
}

test("crossEntropy() gives losses and gradients, in place too, and skips ignored rows", async () => {
  const bed = await Bed.open();
  for (const { dtype, epsilon } of FLOATS) {
    for (const cols of [1, 2, 3, 7, 64, 131]) crossEntropyCase(bed, dtype, epsilon, cols);
  }
});

test("crossEntropy() names the first label out of range and survives extreme logits", async () => {
  const bed = await Bed.open();
  const { at } = bed.random(float32, 12);
  const losses = bed.room(float32, 3);
  const before = bed.bytes(float32, losses, 3);
  assert.equal(bed.kernels.crossEntropy(float32, losses, at, at, bed.put(int32, [0, 4, 9]), 3, 4, -100, 1), 1);
  assert.equal(bed.kernels.crossEntropy(float32, losses, at, at, bed.put(int32, [0, 1, -1]), 3, 4, -100, 1), 2);
  assert.deepEqual(bed.bytes(float32, losses, 3), before);
  const wide = bed.put(float32, [3e38, -3e38, 0, 0, -Infinity, 1, 1, 1, NaN, 0, 0, 0]);
  assert.equal(bed.kernels.crossEntropy(float32, losses, NO_PTR, wide, bed.put(int32, [0, 0, 1]), 3, 4, -100, 1), -1);
  const [first, second, third] = bed.get(float32, losses, 3);
  assert.equal(first, 0);
  assert.equal(second, Infinity);
  assert.ok(third !== undefined && Number.isNaN(third));
});

test("swiglu() and its backward agree with float64", async () => {
  const bed = await Bed.open();
  const sigmoid = (g: number): number => 1 / (1 + Math.exp(-g));
  for (const { dtype, epsilon } of FLOATS) {
    for (const n of [1, 6, 77]) {
      const [gate, up, dy] = [bed.random(dtype, n, -6, 6), bed.random(dtype, n), bed.random(dtype, n)];
      const y = bed.room(dtype, n);
      bed.kernels.swiglu(dtype, y, gate.at, up.at, n);
      close(bed.get(dtype, y, n), gate.x.map((g, i) => g * sigmoid(g) * pick(up.x, i)), epsilon + 5e-7, 0, "swiglu");
      const wantGate = gate.x.map((g, i) => {
        const s = sigmoid(g);
        return pick(dy.x, i) * pick(up.x, i) * s * (1 + g * (1 - s));
      });
      const wantUp = gate.x.map((g, i) => pick(dy.x, i) * g * sigmoid(g));
      bed.kernels.swigluBackward(dtype, gate.at, up.at, dy.at, gate.at, up.at, n); // over the inputs
      close(bed.get(dtype, gate.at, n), wantGate, epsilon + 1e-6, 3e-7, "dgate");
      close(bed.get(dtype, up.at, n), wantUp, epsilon + 1e-6, 0, "dup");
    }
  }
});
