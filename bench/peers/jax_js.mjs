/**
 * Functions that the peers by jax-js share.
 *
 * @module
 */
import process from "node:process";
import { pathToFileURL } from "node:url";

/**
 * jax-js with its WASM backend as the default, and arrays of numbers in [-0.5, 0.5) times a scale. It has as many threads as the
 * benchmark told all programs; by itself it would take one for each core.
 */
export async function openJaxJs(folder) {
  Object.defineProperty(navigator, "hardwareConcurrency", { value: Number(process.env.OMP_NUM_THREADS ?? 1) });
  const jax = await import(pathToFileURL(`${folder}/dist/index.js`).href);
  await jax.init("wasm");
  jax.defaultDevice("wasm");
  let place = 0;
  const random = (shape, scale = 1) => {
    const length = shape.reduce((product, size) => product * size, 1);
    const values = Float32Array.from({ length }, () => ((place++ * 7919) % 10007 / 10007 - 0.5) * scale);
    return jax.numpy.array(values).reshape(shape);
  };
  return { jax, random };
}

/** Milliseconds of the best of the calls that fit into half a second, five at least. */
export async function bestOf(call) {
  await call();
  let best = Infinity;
  const until = performance.now() + 500;
  for (let calls = 0; calls < 5 || performance.now() < until; calls++) {
    const started = performance.now();
    await call();
    best = Math.min(best, performance.now() - started);
  }
  return best;
}
