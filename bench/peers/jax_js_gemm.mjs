/**
 * Times products of two float32 matrices by jax-js in WASM: the peer of bench/ranks/gemm.ts. Arguments: jax-js's folder, and cases, of
 * which the part after the last dash is the shape.
 *
 * @module
 */
import process from "node:process";
import { bestOf, openJaxJs } from "./jax_js.mjs";

const [folder, ...cases] = process.argv.slice(2);
const { jax, random } = await openJaxJs(folder);
const product = jax.jit((a, b) => jax.numpy.matmul(a, b));
for (const name of cases) {
  const [m, n, k] = name.slice(name.lastIndexOf("-") + 1).split("x").map(Number);
  const [a, b] = [random([m, k]), random([k, n])];
  const ms = await bestOf(async () => {
    const c = product(a.ref, b.ref);
    await jax.blockUntilReady(c);
    c.dispose();
  });
  process.stdout.write(`${name} ${(2 * m * n * k / ms / 1e6).toFixed(2)}\n`);
}
// Its workers would keep the process.
process.exit(0);
