/**
 * Times optimizer steps of a GPT of 0.47 M parameters by jax-js in WASM: the peer of bench/ranks/step.ts. The model is that of
 * `gpt-0.5m` in bench/ranks/models.ts; forward, backward and AdamW are one jitted function. Arguments: jax-js's folder, and the case.
 *
 * @module
 */
import process from "node:process";
import { openJaxJs } from "./jax_js.mjs";

const [BATCH, SEQ, VOCAB, HIDDEN, HEADS, LAYERS] = [8, 64, 256, 128, 4, 2];
const [WARMUP, STEPS] = [3, 10];
const [RATE, BETA1, BETA2, EPS, DECAY] = [1e-3, 0.9, 0.999, 1e-8, 0.01];

const [folder, name] = process.argv.slice(2);
const { jax, random } = await openJaxJs(folder);
const { numpy: np, nn, tree } = jax;

const weight = (...shape) => random(shape, 0.07); // a standard deviation of 0.02
const layer = () => ({
  norm1: [np.ones([HIDDEN]), np.zeros([HIDDEN])],
  qkv: [weight(HIDDEN, 3 * HIDDEN), np.zeros([3 * HIDDEN])],
  out: [weight(HIDDEN, HIDDEN), np.zeros([HIDDEN])],
  norm2: [np.ones([HIDDEN]), np.zeros([HIDDEN])],
  up: [weight(HIDDEN, 4 * HIDDEN), np.zeros([4 * HIDDEN])],
  down: [weight(4 * HIDDEN, HIDDEN), np.zeros([HIDDEN])],
});
let params = {
  tokens: weight(VOCAB, HIDDEN),
  positions: weight(SEQ, HIDDEN),
  layers: Array.from({ length: LAYERS }, layer),
  norm: [np.ones([HIDDEN]), np.zeros([HIDDEN])],
  head: weight(HIDDEN, VOCAB),
};

const linear = (x, [w, b]) => np.matmul(x, w).add(b);
function layerNorm(x, [gain, bias]) {
  const centered = x.ref.sub(np.mean(x, -1, { keepdims: true }));
  const variance = np.mean(np.square(centered.ref), -1, { keepdims: true });
  return centered.div(np.sqrt(variance.add(1e-5))).mul(gain).add(bias);
}
function block(x, { norm1, qkv, out, norm2, up, down }) {
  const projected = linear(layerNorm(x.ref, norm1), qkv).reshape([BATCH, SEQ, 3, HEADS, HIDDEN / HEADS]);
  const [q, k, v] = np.split(projected, 3, 2).map((part) => part.reshape([BATCH, SEQ, HEADS, HIDDEN / HEADS]));
  const seen = nn.dotProductAttention(q, k, v, { isCausal: true }).reshape([BATCH * SEQ, HIDDEN]);
  const attended = x.add(linear(seen, out));
  return attended.ref.add(linear(nn.gelu(linear(layerNorm(attended, norm2), up)), down));
}
function lossOf({ tokens, positions, layers, norm, head }, ids, labels) {
  // The gradient of a lookup cannot be jitted in 0.1.25.
  const embedded = np.matmul(nn.oneHot(ids, VOCAB), tokens).reshape([BATCH, SEQ, HIDDEN]).add(positions);
  const last = layers.reduce(block, embedded.reshape([BATCH * SEQ, HIDDEN]));
  const logits = np.matmul(layerNorm(last, norm), head);
  const scores = nn.logSoftmax(logits, -1).mul(nn.oneHot(labels, VOCAB));
  return np.sum(scores).mul(-1 / (BATCH * SEQ));
}

const step = jax.jit((params, first, second, corrections, ids, labels) => {
  const [loss, grads] = jax.valueAndGrad(lossOf)(tree.ref(params), ids, labels);
  const m = tree.map((old, grad) => old.mul(BETA1).add(grad.mul(1 - BETA1)), first, tree.ref(grads));
  const v = tree.map((old, grad) => old.mul(BETA2).add(np.square(grad).mul(1 - BETA2)), second, grads);
  const [c1, c2] = np.split(corrections, 2, 0).map((one) => one.reshape([]));
  const update = (old, a, b) => {
    const direction = a.mul(c1.ref).div(np.sqrt(b.mul(c2.ref)).add(EPS));
    return old.mul(1 - RATE * DECAY).sub(direction.mul(RATE));
  };
  const next = tree.map(update, params, tree.ref(m), tree.ref(v));
  c1.dispose();
  c2.dispose();
  return [next, m, v, loss];
});

const zeros = () => tree.map((one) => np.zerosLike(one), tree.ref(params));
let [first, second] = [zeros(), zeros()];
const text = Int32Array.from({ length: BATCH * SEQ + 1 }, (_, i) => i * 7919 % VOCAB);
const ids = np.array(text.slice(0, -1), { dtype: np.int32 });
const labels = np.array(text.slice(1), { dtype: np.int32 });
const times = [];
const losses = [];
for (let i = 1; i <= WARMUP + STEPS; i++) {
  const started = performance.now();
  const corrections = np.array(Float32Array.of(1 / (1 - BETA1 ** i), 1 / (1 - BETA2 ** i)));
  const [next, m, v, loss] = step(params, first, second, corrections, ids.ref, labels.ref);
  [params, first, second] = [next, m, v];
  losses.push(await loss.jsAsync());
  await jax.blockUntilReady([next, m, v]);
  if (i > WARMUP) times.push(performance.now() - started);
}
if (!(losses.at(-1) < losses[0])) throw new Error(`the loss did not fall: ${losses.join(", ")}`);
process.stdout.write(`${name} ${times.toSorted((a, b) => a - b)[STEPS >> 1].toFixed(2)}\n`);
// Its workers would keep the process.
process.exit(0);
