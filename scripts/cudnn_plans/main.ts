/**
 * Asks the real cuDNN for the plans of attention on cards that are not here: `node scripts/runtime.mjs bun
 * scripts/cudnn_plans/main.ts [--environment folder] [--card sm_90]`, a Python environment with `nvidia-cudnn-cu13`,
 * `nvidia-cublas` and `nvidia-cuda-nvrtc`; else cuDNN is looked for as a device does. cuDNN compiles its kernels for each
 * card, takes the addresses that they would be given, and runs nothing. Needs gcc, and no driver, whose place a stand-in
 * takes. Fails if a shape that docs/cuda.md promises has no plan.
 *
 * @module
 */
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import type { Flag } from "../../src/config/flags.ts";
import { Descriptors } from "../../src/device/cuda/cudnn/descriptors.ts";
import { makePlan, packOf, type SdpaPlan, type SdpaShape, uidOf } from "../../src/device/cuda/cudnn/sdpa.ts";
import { cudnnVersion } from "../../src/device/cuda/cudnn/version.ts";
import { bfloat16, float16 } from "../../src/dtype.ts";
import { CUDNN } from "../../src/ffi/bindings/cudnn.ts";
import { LIBDL, RTLD_NOW } from "../../src/ffi/bindings/libdl.ts";
import { openLibrary, openProvider } from "../../src/ffi/mod.ts";
import { environmentFrom, processEnvironment } from "../../src/runtime/env.ts";
import { readScriptFlags } from "../flags.ts";

const flags: readonly Flag[] = [
  { name: "environment", takes: "one", placeholder: "<folder>", description: "The Python environment" },
  { name: "card", takes: "one", placeholder: "<kind>", description: "One kind of card" },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

/** A card, as cuDNN is told of one: its capability, multiprocessors, and shared memory that a block may ask for. */
type Card = readonly [name: string, capability: number, multiprocessors: number, sharedBytes: number];
const CARDS: readonly Card[] = [
  ["sm_80", 800, 108, 166_912],
  ["sm_86", 860, 82, 101_376],
  ["sm_89", 890, 58, 101_376],
  ["sm_90", 900, 132, 232_448],
  ["sm_100", 1000, 148, 232_448],
  ["sm_120", 1200, 170, 101_376],
];

/** The keys that cuDNN reads; it refuses a card without one of them. */
function propertiesOf([deviceName, capability, multiprocessors, sharedBytes]: Card): string {
  return JSON.stringify({
    ...{ cudaDeviceId: 0, deviceId: 0, pciDeviceId: 0, deviceName, deviceVer: capability, smVersion: capability },
    ...{ driverVer: 13_000, driverVersion: 13_000, isTccDriver: 0, supportCoopLaunch: 1 },
    ...{ multiProcessorCount: multiprocessors, smCountOrigin: 0, warpSize: 32, maxCtasPerSM: 32 },
    ...{ maxGridSize: [2 ** 31 - 1, 65_535, 65_535], maxBlockSize: [1024, 1024, 64], maxThreadsPerBlock: 1024 },
    ...{ maxThreadsPerSM: 2048, regsPerBlock: 65_536, maxRegistersPerSM: 65_536, totalGlobalMem: 80e9 },
    ...{ maxSharedMemoryPerBlock: 49_152, maxSharedMemoryPerBlockOptin: sharedBytes },
    ...{ reservedSharedMemoryPerBlock: 1024, oversizedSharedMemoryPerBlock: 0, l2CacheSize: 52_428_800 },
    ...{ smClockRateKHz: 1_500_000, memClockRateKHz: 2_000_000, memoryBusWidth: 5120 },
  });
}

/** Dims of a head of queries and keys, and of values; from which capability on both directions must have plans. */
const DIMS: readonly (readonly [headDim: number, valueDim: number, since: number])[] = [
  [8, 8, 800],
  [40, 40, 800],
  [64, 64, 800],
  [80, 80, 800],
  [96, 96, 800],
  [128, 128, 800],
  [192, 128, Infinity],
  [256, 256, Infinity],
];

/** The shapes that are tried with each of {@link DIMS}. */
const FORMS: readonly (readonly [name: string, change: Partial<SdpaShape>])[] = [
  ["causal", {}],
  ["not causal", { causal: false }],
  ["causal, more keys", { seqQ: 130, seqK: 300 }],
  ["causal, 8 heads of keys", { kvHeads: 8 }],
  ["causal, 7 tokens", { seqQ: 7, seqK: 7 }],
  ["causal, float16", { dtype: float16 }],
];

/** Fails unless cuDNN takes what a plan would be given: addresses, of which it reads nothing then. */
function bind(descriptors: Descriptors, { tensors }: SdpaPlan): void {
  const uids = tensors.map(uidOf);
  const pack = packOf(uids, uids.map((uid) => uid * 2 ** 20), 2 ** 20);
  descriptors.lend("CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR", pack, () => {});
}

/** Number of shapes with plans in both directions, by dims; and the kinds of shapes that have none. */
function tryCard(descriptors: Descriptors, card: Card): boolean {
  const [name, capability] = card;
  const text = propertiesOf(card);
  const properties = descriptors.make("CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR", [
    ["CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION", { text }],
  ]);
  let isRight = true;
  for (const [headDim, valueDim, since] of DIMS) {
    const lacking: string[] = [];
    let workspace = 0;
    for (const [form, change] of FORMS) {
      const sizes = { batch: 2, seqQ: 512, seqK: 512, heads: 8, kvHeads: 2, headDim, valueDim };
      const { kvHeads } = { ...sizes, ...change };
      // As views of one product of queries, keys and values are, each row is longer than its heads.
      const row = 8 * headDim + kvHeads * (headDim + valueDim);
      const strides = { strideQ: row, strideK: row, strideV: row };
      for (const direction of ["forward", "backward"] as const) {
        const shape = { direction, dtype: bfloat16, causal: true, ...sizes, ...strides, ...change };
        const plan = makePlan(descriptors, shape, { properties });
        if (typeof plan === "string") lacking.push(`${direction} ${form}: ${plan}`);
        else {
          workspace = Math.max(workspace, plan.workspaceBytes);
          bind(descriptors, plan);
        }
      }
    }
    if (lacking.length > 0 && capability >= since) isRight = false;
    const said = lacking.length === 0
      ? `all, at most ${workspace} bytes of workspace`
      : `none for ${lacking.join("; ")}`;
    print(`${name}, heads of ${headDim}${headDim === valueDim ? "" : ` and ${valueDim}`}: ${said}`);
  }
  return isRight;
}

async function main(argv: readonly string[]): Promise<number> {
  const uses = readScriptFlags(flags, argv);
  if (typeof uses === "number") return uses;
  const folder = uses.get("environment")?.texts.at(-1);
  const environment = folder === undefined
    ? processEnvironment()
    : environmentFrom((name) => name === "VIRTUAL_ENV" ? folder : undefined);
  const provider = await openProvider();
  const temporary = mkdtempSync(join(tmpdir(), "fullyshard-cudnn-plans-"));
  try {
    const driver = join(temporary, "libcuda.so.1");
    const source = fileURLToPath(new URL("driver.c", import.meta.url));
    const options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", driver, source];
    const { status, stderr } = spawnSync("gcc", options, { encoding: "utf8" });
    if (status !== 0) throw new Error(`gcc cannot build ${source}: ${stderr}`);
    // A library that was loaded by this name serves every later request for the name.
    (await openLibrary(LIBDL, { provider })).symbols.dlopen(driver, RTLD_NOW);
    const cudnn = await openLibrary(CUDNN, { provider, environment });
    print(`cuDNN ${cudnnVersion(cudnn)} (${cudnn.path})`);
    using descriptors = new Descriptors(cudnn);
    const only = uses.get("card")?.texts.at(-1);
    const cards = CARDS.filter(([name]) => only === undefined || name === only);
    return cards.map((card) => tryCard(descriptors, card)).every((isRight) => isRight) ? 0 : 1;
  } finally {
    rmSync(temporary, { recursive: true });
  }
}

function print(text: string): void {
  process.stdout.write(`${text}\n`);
}

process.exitCode = await main(process.argv.slice(2));
