/**
 * Times optimizer steps of a mixture of 16 experts, of which each token goes to 2: `routing.ts <case>…` prints the least
 * milliseconds of each, and the most bytes in use at once. Cases differ in their tokens alone, by turns: an embedding points
 * along a dim of its own that is left to it, and routers send that dim to two experts; so tokens go to experts in turn, at random,
 * or all to the same two.
 *
 * @module
 */
import process from "node:process";
import { AdamW, int32, scope, tensor } from "fullyshard";
import { openDevice } from "fullyshard/device";
import { buildModel, initializeParameters } from "fullyshard/nn";
import { keyOf, uniformInt } from "fullyshard/testing";

const [BATCH, SEQ, HIDDEN, EXPERTS] = [16, 256, 256, 16];
const STEPS = 12;
const key = keyOf(0, "routing");

/** The token at a place; token `i` goes to experts `i` and `i + 1`. */
const TOKEN: Readonly<Record<string, (place: number) => number>> = {
  even: (place) => place % EXPERTS,
  random: (place) => uniformInt(key, place, EXPERTS),
  one: () => 3,
};

const device = await openDevice("cpu", { cpuMath: "native" });
const model = buildModel(device, {
  model_type: "mixtral",
  vocab_size: 512,
  hidden_size: HIDDEN,
  intermediate_size: 256,
  num_hidden_layers: 2,
  num_attention_heads: 8,
  num_key_value_heads: 4,
  num_local_experts: EXPERTS,
  num_experts_per_tok: 2,
});
initializeParameters(model, 0);
for (const parameter of model.parameters()) {
  const { fqn, numel } = parameter;
  const values = Float32Array.from({ length: numel }, (_, i) => {
    const [row, dim] = [Math.floor(i / HIDDEN), i % HIDDEN];
    if (fqn.endsWith("embed_tokens.weight")) return row === dim ? 10 : 0;
    return row === dim ? 2 : row === (dim + 1) % EXPERTS && dim < EXPERTS ? 1 : 0;
  });
  if (/embed_tokens\.weight$|gate\.weight$/.test(fqn)) parameter.copyFromHost(values);
}
// So small a rate leaves the routers as they are.
const optimizer = new AdamW(model.parameters(), { learningRate: 1e-9, weightDecay: 0 });

const cases = process.argv.slice(2).map((name) => {
  const token = TOKEN[name];
  if (token === undefined) throw new Error(`no case '${name}'`);
  const ids = tensor(device, Int32Array.from({ length: BATCH * SEQ }, (_, place) => token(place)), {
    shape: [BATCH, SEQ],
    dtype: int32,
  });
  return { name, ids: ids.persist(), least: Infinity, peak: 0 };
});
for (let step = 0; step < STEPS; step++) {
  for (const one of cases) {
    device.allocator.resetPeak();
    const started = performance.now();
    {
      using _step = scope();
      optimizer.zeroGrad();
      model.call({ inputIds: one.ids, labels: one.ids }).loss?.backward();
      optimizer.step();
    }
    one.least = Math.min(one.least, performance.now() - started);
    one.peak = device.allocator.stats.peak;
  }
}
for (const { name, least, peak } of cases) process.stdout.write(`${name} ${least.toFixed(3)} ${peak}\n`);
