/**
 * Parity traces: running the cases, putting the shards together, comparing bits.
 *
 * @module
 */
import type { CpuMath } from "../../doors/device.ts";
import { at } from "../../src/at.ts";
import { createLoopbackWorld } from "../../src/comm/data/loopback.ts";
import { runPooled } from "../../tests/support/rank_pool.ts";
import { axisGroups, type Combination } from "./axes.ts";
import type { Mode, OptimizerName, PrecisionNames, Trace, TrainingCase } from "./training.ts";

/** One case's losses, norms and final weights (whole, in order of FQN). */
export interface WholeTrace {
  readonly name: string;
  readonly losses: readonly number[];
  readonly gradNorms: readonly number[];
  readonly weights: Float32Array;
}

/** Distances of two traces, in units in the last place. */
export interface Pair {
  readonly a: string;
  readonly b: string;
  readonly max_ulp_loss: number;
  readonly max_ulp_grad_norm: number;
  readonly max_ulp_weights: number;
}

function areTraces(value: unknown): value is readonly Trace[] {
  return Array.isArray(value) && value.every((one) => typeof one === "object" && one !== null && "owned" in one);
}

/** One case: a training on some ranks. */
export interface ParityCase {
  readonly name: string;
  readonly ranks: number;
  readonly training: TrainingCase;
}

/** Cases that one world trains: each may split it into four groups, of which a rank can be in 16. */
const CASES_OF_A_WORLD = 3;

/** Runs cases as Workers, those of as many ranks one after another in the same ones; the traces are in the order of the cases. */
export async function runCases(cases: readonly ParityCase[], cpuMath: CpuMath): Promise<readonly WholeTrace[]> {
  const traces = new Map<ParityCase, WholeTrace>();
  for (const [world, alike] of Map.groupBy(cases, ({ ranks }) => ranks)) {
    const parts = Array.from({ length: Math.ceil(alike.length / CASES_OF_A_WORLD) }, (_, part) => {
      const members = alike.slice(part * CASES_OF_A_WORLD, (part + 1) * CASES_OF_A_WORLD);
      return { world: createLoopbackWorld(world), trainings: members.map(({ training }) => training) };
    });
    const results = await runPooled(world, new URL("./rank.ts", import.meta.url), { cpuMath, parts });
    for (const [i, one] of alike.entries()) {
      const ofRanks = results.filter(areTraces).flatMap((ofRank) => ofRank.slice(i, i + 1));
      traces.set(one, assemble(one.name, ofRanks, world));
    }
  }
  return cases.map((one) => {
    const trace = traces.get(one);
    if (trace === undefined) throw new Error(`no trace of ${one.name}`);
    return trace;
  });
}

/** Puts the ranks' shares together; checks that all saw the same and that every element is owned (in DDP: equal). */
export function assemble(name: string, traces: readonly Trace[], world: number): WholeTrace {
  const [first] = traces;
  if (first === undefined || traces.length !== world) {
    throw new Error(`${name}: ${traces.length} of ${world} ranks returned`);
  }
  for (const [rank, trace] of traces.entries()) {
    if (ulps(trace.losses, first.losses, doubleBits) + ulps(trace.gradNorms, first.gradNorms, doubleBits) !== 0) {
      throw new Error(`${name}: rank ${rank} saw another loss or norm than rank 0`);
    }
  }
  const weights = [...Map.groupBy(traces.flatMap(({ owned }) => owned), ({ fqn }) => fqn)]
    .sort(([a], [b]) => a < b ? -1 : 1)
    .map(([fqn, parts]) => joinParts(`${name}: '${fqn}'`, parts));
  return { name, losses: first.losses, gradNorms: first.gradNorms, weights: concat(weights) };
}

/** The whole of a parameter; ranks that own the same element must have the same bits. */
function joinParts(what: string, parts: Trace["owned"]): Float32Array {
  const whole = new Float32Array(Math.max(...parts.map(({ offset, values }) => offset + values.length)));
  const isOwned = new Uint8Array(whole.length);
  for (const { offset, values } of parts) {
    for (let i = 0; i < values.length; i++) {
      const [place, value] = [offset + i, at(values, i, `element of ${what}`)];
      if (isOwned[place] === 1 && !Object.is(whole[place], value)) throw new Error(`${what}: ranks differ at ${place}`);
      whole[place] = value;
      isOwned[place] = 1;
    }
  }
  const missing = isOwned.indexOf(0);
  if (missing >= 0) throw new Error(`${what}: no rank owns element ${missing}`);
  return whole;
}

function concat(parts: readonly Float32Array[]): Float32Array {
  const whole = new Float32Array(parts.reduce((sum, { length }) => sum + length, 0));
  let place = 0;
  for (const part of parts) {
    whole.set(part, place);
    place += part.length;
  }
  return whole;
}

/** Settings that cases share, besides the world. */
export interface Circumstances {
  readonly tied: boolean;
  readonly steps: number;
  /** True if a block is left out in some steps. @default false */
  readonly skips?: boolean;
  readonly precision?: PrecisionNames;
  /** True if the model uses dropout. @default false */
  readonly dropout?: boolean;
  /** True if an adapter is trained. @default false */
  readonly lora?: boolean;
  /** The optimizer. @default AdamW */
  readonly optimizer?: OptimizerName;
  /** Whether another model loads the first half of the steps. @default false */
  readonly resumed?: boolean;
}

/** All cases of one world size: the reference comes first. */
export function casesOf(
  world: number,
  { tied, steps, skips = false, precision, dropout = false, lora = false, optimizer, resumed = false }: Circumstances,
): readonly ParityCase[] {
  const dtypes = precision === undefined ? "" : `, ${precision.paramDtype} reduced in ${precision.reduceDtype}`;
  const ways = `${skips ? ", a block left out at times" : ""}${dropout ? ", dropout" : ""}${lora ? ", LoRA" : ""}${
    optimizer === undefined ? "" : `, ${optimizer}`
  }${resumed ? ", resumed" : ""}`;
  const weights = `${tied ? "tied" : "untied"}${ways}${dtypes}`;
  const one = (mode: Mode, ranks: number, label: string): ParityCase => ({
    name: `${label} ${weights}`,
    ranks,
    training: { mode, tied, microBatches: world, steps, skips, precision, dropout, lora, optimizer, resumed },
  });
  const plain = skips || precision !== undefined ? [] : [one("plain", 1, `plain, ${world} accumulated`)];
  return [
    one("ddp", world, `DDP(${world})`),
    one("fsdp-reshard", world, `FSDP(${world}, reshardAfterForward)`),
    one("fsdp-keep", world, `FSDP(${world}, keep)`),
    ...world % 2 === 0 && world > 2 ? [one("fsdp-partial", world, `FSDP(${world}, reshard to 2)`)] : [],
    one("fsdp-reshard", 1, `FSDP(1, ${world} accumulated)`),
    one("ddp", 1, `DDP(1, ${world} accumulated)`),
    ...plain,
  ];
}

/** HSDP on a mesh, both ways, against plain parameters that are summed in the same order. */
export function hybridCasesOf(replicas: number, shard: number, { tied, steps }: Circumstances): readonly ParityCase[] {
  const microBatches = replicas * shard;
  const one = (mode: Mode, ranks: number, label: string): ParityCase => ({
    name: `${label} ${tied ? "tied" : "untied"}`,
    ranks,
    training: { mode, tied, microBatches, steps, replicas },
  });
  const mesh = `${replicas} x ${shard}`;
  return [
    one("plain", 1, `plain, summed as ${mesh}`),
    one("fsdp-reshard", microBatches, `HSDP(${mesh}, reshardAfterForward)`),
    one("fsdp-keep", microBatches, `HSDP(${mesh}, keep)`),
  ];
}

/** The cases of mixed precision: bfloat16 gradients are rounded once for each rank, so only float32 sums agree to the bit. */
const BFLOAT16: PrecisionNames = { paramDtype: "bfloat16", reduceDtype: "float32" };

/**
 * The cases of each world size, in groups that must agree: all of them to four ranks, some with an unused block, some with dropout,
 * some in bfloat16, HSDP on three meshes, some on eight; then combinations of axes.
 */
export function caseGroups(
  steps: number,
  chosen: readonly Combination[],
): readonly (readonly ParityCase[])[] {
  const small = [1, 2, 3, 4].flatMap((world) => [true, false].map((tied) => casesOf(world, { tied, steps })));
  const skipping = [2, 3].map((world) => casesOf(world, { tied: false, steps, skips: true }));
  const dropping = [1, 2, 3, 4].map((world) => casesOf(world, { tied: world % 2 === 0, steps, dropout: true }));
  const mixed = [2, 3].map((world) => casesOf(world, { tied: true, steps, precision: BFLOAT16 }));
  const [, sharded, , partial, alone] = casesOf(8, { tied: true, steps });
  if (sharded === undefined || partial === undefined || alone === undefined) throw new Error("no case of eight ranks");
  const hybrid = ([[2, 1], [2, 2], [3, 2]] as const).map(([replicas, shard]) =>
    hybridCasesOf(replicas, shard, { tied: replicas === 2, steps })
  );
  return [
    ...small,
    ...skipping,
    ...dropping,
    ...mixed,
    ...hybrid,
    [alone, sharded, partial],
    ...axisGroups(steps, chosen),
  ];
}

/** Bits of numbers, ordered like the numbers, as integers that are exact. */
type Bits = (values: ArrayLike<number>) => (index: number) => bigint;

const doubleBits: Bits = (values) => {
  const bits = new BigInt64Array(Float64Array.from(values).buffer);
  return (index) => ordered(at(bits, index, "number"), 0x7fffffffffffffffn);
};

const floatBits: Bits = (values) => {
  const bits = new Int32Array(Float32Array.from(values).buffer);
  return (index) => ordered(BigInt(at(bits, index, "number")), 0x7fffffffn);
};

/** Of a sign and a magnitude, the number. */
function ordered(bits: bigint, magnitude: bigint): bigint {
  return bits < 0n ? -(bits & magnitude) : bits;
}

/** The largest distance of two numbers at the same place, in units in the last place; infinite where one is not finite. */
function ulps(a: ArrayLike<number>, b: ArrayLike<number>, bitsOf: Bits): number {
  if (a.length !== b.length) return Infinity;
  const [bitsOfA, bitsOfB] = [bitsOf(a), bitsOf(b)];
  let most = 0n;
  for (let i = 0; i < a.length; i++) {
    const [x, y] = [at(a, i, "number"), at(b, i, "number")];
    if (!Number.isFinite(x) || !Number.isFinite(y)) return Infinity;
    // Zeros of two signs are as far apart as their bits: not at all.
    if (x === y) continue;
    const distance = bitsOfA(i) - bitsOfB(i);
    const size = distance < 0n ? -distance : distance;
    if (size > most) most = size;
  }
  return Number(most);
}

/** Compares two traces. */
export function compare(a: WholeTrace, b: WholeTrace): Pair {
  return {
    a: a.name,
    b: b.name,
    max_ulp_loss: ulps(a.losses, b.losses, doubleBits),
    max_ulp_grad_norm: ulps(a.gradNorms, b.gradNorms, doubleBits),
    max_ulp_weights: ulps(a.weights, b.weights, floatBits),
  };
}
