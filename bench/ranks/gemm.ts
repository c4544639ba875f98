/**
 * Times products of two float32 matrices: `gemm.ts <math>-<m>x<n>x<k>…` prints the best rate of each.
 *
 * @module
 */
import { randn } from "fullyshard/nn";
import { scope } from "fullyshard";
import { bestOf, timeCases } from "./timing.ts";

await timeCases((device, name) => {
  const [m = NaN, n = NaN, k = NaN] = name.split("x").map(Number);
  const [a, b] = [randn(device, [m, k], 1), randn(device, [k, n], 2)];
  const ms = bestOf(() => {
    using _frame = scope();
    a.matmul(b);
  });
  return 2 * m * n * k / ms / 1e6;
});
