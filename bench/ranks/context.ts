/**
 * A rank that shares the positions of rows: `context.ts <ring|allgather> <case>…` prints the median milliseconds of a training step of one
 * layer (`step-<length>`), and of it in calls of the context axis (`exposed-<length>`), on rank 0.
 *
 * @module
 */
import process from "node:process";
import { fullyShard, launch, openModel, parallelizeContext } from "fullyshard";
import type { ProcessGroup } from "fullyshard/comm";

const [WARM, STEPS] = [2, 5];

/** Milliseconds in calls so far. */
let inCalls = 0;

function timed<T>(call: () => T): T {
  const started = performance.now();
  try {
    return call();
  } finally {
    inCalls += performance.now() - started;
  }
}

/** Has the calls of a group and their ends counted. */
function watch(group: ProcessGroup): void {
  const watched = (work: ReturnType<ProcessGroup["transfer"]>): typeof work => ({
    wait: () => timed(() => work.wait()),
    advance: () => timed(() => work.advance?.()),
  });
  const [transfer, allGather, reduceScatter] = [
    group.transfer.bind(group),
    group.allGather.bind(group),
    group.reduceScatter.bind(group),
  ];
  group.transfer = (...args) => watched(timed(() => transfer(...args)));
  group.allGather = (...args) => watched(timed(() => allGather(...args)));
  group.reduceScatter = (...args) => watched(timed(() => reduceScatter(...args)));
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? NaN;
}

const [strategy, ...names] = process.argv.slice(2);
if (strategy !== "ring" && strategy !== "allgather") throw new Error(`no strategy '${strategy}'`);
await using run = await launch({ axes: { shard: 1, context: -1 } });
const lengths = [...new Set(names.map((name) => Number(name.split("-")[1])))];
const axis = run.mesh.get("context");
watch(axis.group);
const mesh = run.mesh.flatten(["shard", "context"], "shard_context");
for (const seq of lengths) {
  const sizes = { vocab_size: 64, hidden_size: 512, intermediate_size: 64, num_hidden_layers: 1 };
  const heads = { num_attention_heads: 8, num_key_value_heads: 8, max_position_embeddings: seq };
  const model = await openModel(run, { model_type: "llama", ...sizes, ...heads });
  parallelizeContext(model, axis, { commStrategy: strategy });
  fullyShard(model, { mesh });
  await model.load();
  const inputIds = Int32Array.from({ length: seq }, (_, i) => (i * 7) % 64);
  const batch = { microBatches: [{ inputIds, labels: inputIds, batch: 1, seq }] };
  const [steps, calls]: [number[], number[]] = [[], []];
  for (let step = 0; step < WARM + STEPS; step++) {
    run.group.barrier("step");
    inCalls = 0;
    const started = performance.now();
    run.backward(model, batch).dispose();
    const took = performance.now() - started;
    for (const parameter of model.parameters()) parameter.zeroGrad();
    if (step < WARM) continue;
    steps.push(took);
    calls.push(inCalls);
  }
  if (run.group.rank > 0) continue;
  process.stdout.write(`step-${seq} ${median(steps).toFixed(3)}\nexposed-${seq} ${median(calls).toFixed(3)}\n`);
}
