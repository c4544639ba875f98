/**
 * Times what the host does for a card, on the double of NVIDIA's libraries on which nothing runs: `launches.ts <case>…` prints the
 * microseconds of the best of many calls of each, and `launches.ts counts` the calls of a step as JSON, `counts-replayed` those of
 * one that a graph takes. Time is that of the
 * process on all processors, which others do not lengthen on a busy machine, as they do that of the clock.
 *
 * @module
 */
import { bfloat16, float32 } from "fullyshard";
import { openProcessGroup, type ProcessGroup } from "fullyshard/comm";
import { type Device, openDevice } from "fullyshard/device";
import process from "node:process";
import { openProvider } from "../../src/ffi/mod.ts";
import { capturedStep, LLAMA_SIZES, llamaStep } from "./llama_step.ts";

/** Calls of a round, and rounds; the first ones are those in which a runtime compiles. */
const [CALLS, ROUNDS] = [20_000, 12];
const [WARMUP, STEPS] = [40, 40];
/** Names of the double's counters, in its order. */
const COUNTS = [
  "launches",
  "products",
  "collectives",
  "copies",
  "allocations",
  "frees",
  "records",
  "waits",
  "graphs",
] as const;

function cpuMicroseconds(): number {
  const { user, system } = process.cpuUsage();
  return user + system;
}

const device = await openDevice("cuda:0");

function callsOf(device: Device): Readonly<Record<string, () => void>> {
  const { allocator, kernels } = device;
  const [a, b, c] = [1, 2, 3].map(() => allocator.allocate(4096, "bench"));
  if (a === undefined || b === undefined || c === undefined) throw new Error("nothing was allocated");
  const few = { dtype: float32, rows: 4, cols: 256, eps: 1e-6, zeroCentered: false, y: a, rstd: b, x: c, w: b };
  const many = {
    dtype: float32,
    op: "add",
    shape: [4, 64],
    aStrides: [64, 1],
    bStrides: [0, 1],
    dst: a,
    a: b,
    b: c,
  } as const;
  const product = {
    ...{ dtype: bfloat16, outDtype: bfloat16, transA: false, transB: true, m: 16, n: 16, k: 16, lda: 16, ldb: 16 },
    ...{ ldc: 16, batch: 1, strideA: 0, strideB: 0, strideC: 0, alpha: 1, beta: 0, a, b, c },
  };
  return {
    launch: () => kernels.rmsNorm(few),
    "launch-strided": () => kernels.binary(many),
    product: () => kernels.gemm(product),
    allocation: () => allocator.free(allocator.allocate(4096, "bench")),
    copy: () => device.copy(a, b, 1024),
  };
}

/** A step by a graph, as the trainer takes it. */
function readStepOf(group: ProcessGroup) {
  const { readStep: step, parameters } = capturedStep(device, group, LLAMA_SIZES["1b"]);
  return { step, parameters };
}

/** Times a whole step, call by call or by a graph. */
async function timeStep(by: "calls" | "graph"): Promise<{ us: number; counts: Readonly<Record<string, number>> }> {
  using group = await openProcessGroup({ device, backend: "nccl" });
  const { step, parameters } = by === "graph" ? readStepOf(group) : llamaStep(device, group, LLAMA_SIZES["1b"]);
  const double = process.env["FULLYSHARD_CUDART_LIBRARY"];
  if (double === undefined) throw new Error("no double is named: run 'npm run bench -- launches'");
  const { symbols } = (await openProvider()).load("idle double", double, {
    idleCounts: { args: ["buffer"], result: "void", check: "none" },
  });
  const counts = new BigUint64Array(COUNTS.length);
  const times: number[] = [];
  for (let i = 0; i < WARMUP + STEPS; i++) {
    symbols.idleCounts(counts);
    const started = cpuMicroseconds();
    step();
    if (i >= WARMUP) times.push(cpuMicroseconds() - started);
    device.synchronize();
  }
  symbols.idleCounts(counts);
  const told = COUNTS.map((name, i): [string, number] => [name, Number(counts[i])]);
  return { us: Math.min(...times), counts: { parameters, ...Object.fromEntries(told) } };
}

const calls = callsOf(device);
for (const name of process.argv.slice(2)) {
  const call = calls[name];
  if (name === "counts" || name === "counts-replayed") {
    process.stdout.write(`${JSON.stringify((await timeStep(name === "counts" ? "calls" : "graph")).counts)}\n`);
  } else if (name === "llama-1b-step" || name === "llama-1b-step-replayed") {
    process.stdout.write(`${name} ${(await timeStep(name === "llama-1b-step" ? "calls" : "graph")).us.toFixed(1)}\n`);
  } else if (call === undefined) throw new Error(`no case '${name}'`);
  else {
    let best = Infinity;
    for (let round = 0; round < ROUNDS; round++) {
      const started = cpuMicroseconds();
      for (let i = 0; i < CALLS; i++) call();
      best = Math.min(best, cpuMicroseconds() - started);
    }
    process.stdout.write(`${name} ${(best / CALLS).toFixed(4)}\n`);
  }
}
