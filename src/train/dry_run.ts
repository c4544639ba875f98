/**
 * Memory, communication and operations of a step, measured without its cost: the step itself is done on a device that computes
 * nothing, as one rank of a world that does not exist. So the figures are counted, for any module, parallelism and number of
 * ranks, and not derived.
 *
 * @module
 */
import { byteLengthOf, type Call, type CallKind, isCollective } from "../comm/call.ts";
import { type DryOptions, openDry } from "../comm/data/dry.ts";
import type { MeshShape } from "../comm/mesh.ts";
import { backendOf } from "../comm/registry.ts";
import { type MemoryTerms, NO_TERMS } from "../device/allocator.ts";
import type { Device } from "../device/device.ts";
import { DryDevice } from "../device/dry/device.ts";
import { openAbsentCard, openDevice } from "../device/registry.ts";
import type { CpuMath } from "../device/cpu.ts";
import { Run } from "./run.ts";

/** Options of {@link dryRun}. */
export interface DryRunOptions extends Omit<DryOptions, "rank"> {
  /** The rank that is measured. @default 0 */
  readonly rank?: number;
  /** Ranks on a host. @default all */
  readonly localWorldSize?: number | undefined;
  /**
   * The device that it stands for, which is only read; `cuda` is a card that need not be here. Ranks with cards are joined by
   * `nccl` unless `standsFor` says otherwise. @default the CPU, opened during the dry run
   */
  readonly device?: Device | "cuda";
  /**
   * Number of steps. Memory is measured in all but the first, which allocates what stays; everything else in the second. @default
   * 2
   */
  readonly steps?: number;
  /** Lengths of the axes of the run's mesh, as `launch` takes them. @default one, `shard`, of all ranks */
  readonly axes?: MeshShape | undefined;
  /** Code that would compute matrix products, if no device is given. */
  readonly cpuMath?: CpuMath;
}

/** Most memory in use at once. */
export interface MemoryPeak {
  /** Largest number of bytes in use at once; of memory that all ranks of a host share, this rank's part. */
  readonly peakBytes: number;
  /** Bytes of the peak by kind, which add up to `peakBytes`. */
  readonly terms: MemoryTerms;
  /** Peak of offloaded memory on the host, counted separately. */
  readonly offloaded: { readonly peakBytes: number; readonly terms: MemoryTerms };
}

/** A call that moves tensors between ranks. */
export interface CollectiveUse extends Pick<Call, "kind" | "unit" | "phase"> {
  /** Bytes of the array that is gathered, reduced or sent, over all ranks. */
  readonly bytes: number;
  /** Bytes that this rank receives if each byte travels once: see {@link DryRun.bytesCommunicated}. */
  readonly received: number;
  /** Number of hosts of its ranks. */
  readonly hosts: number;
  /** Floating-point operations of the step before the call. */
  readonly flopsBefore: number;
  /** Operations when a message was waited for, which had been done beside it. @default those before it */
  readonly flopsAwaited?: number;
}

/** Memory, communication and operations of one step on one rank. */
export interface DryRun extends MemoryPeak {
  /** Size of memory that the step needs: up to the highest address allocated since the start, with gaps between blocks. */
  readonly highest: number;
  /**
   * Bytes that the rank receives if each byte travels once, with n ranks:
   * - all-gather and reduce-scatter: (n − 1)/n of the array;
   * - all-reduce: twice that;
   * - broadcast and messages: all bytes.
   *
   * Host bytes do not count.
   */
  readonly bytesCommunicated: number;
  /** Collectives in the order of the calls. */
  readonly collectives: readonly CollectiveUse[];
  /** Floating-point operations of all kernels. */
  readonly flops: number;
}

/** Bytes that a rank receives in each kind of call that moves tensors, by the array's bytes and the number of ranks. */
const RECEIVED: Readonly<Partial<Record<CallKind, (bytes: number, size: number) => number>>> = {
  gather: (bytes, size) => bytes * (size - 1) / size,
  "all-gather": (bytes, size) => bytes * (size - 1) / size,
  "reduce-scatter": (bytes, size) => bytes * (size - 1) / size,
  "all-reduce": (bytes, size) => 2 * bytes * (size - 1) / size,
  broadcast: (bytes) => bytes,
  "send and receive": (bytes) => bytes,
};

/** Peak memory of a rank since the allocator last began to measure. */
export function memoryPeak(
  { device, group: { stagingBytes, stagingRanks } }: Pick<Run, "device" | "group">,
): MemoryPeak {
  const { peak, peakTerms } = device.allocator.stats;
  const ofOthers = stagingBytes - Math.ceil(stagingBytes / stagingRanks);
  const terms = { ...peakTerms, staging: peakTerms.staging - ofOthers };
  const pool = device.offload.stats;
  const offloaded = pool === undefined
    ? { peakBytes: 0, terms: NO_TERMS }
    : { peakBytes: pool.peak, terms: pool.peakTerms };
  return { peakBytes: peak - ofOthers, terms, offloaded };
}

/**
 * Does a step twice, or more often, on one rank of a world of any size, and measures the second. Nothing is computed or sent, and
 * no memory is allocated: reads give zeros, and all other ranks are taken to do the same as this one.
 *
 * @param setup makes model, optimizer and batch, and returns the step
 * @throws {HazardError} if streams use memory in an order that no event ensures
 * @example
 * ```ts
 * import { AdamW, dryRun, fullyShard, scope } from "fullyshard";
 * import { initializeParameters, Linear, zeros } from "fullyshard/nn";
 *
 * const { peakBytes, terms, collectives } = await dryRun(({ device, mesh }) => {
 *   const layer = new Linear(device, 4096, 4096, { bias: false });
 *   fullyShard(layer, { mesh });
 *   initializeParameters(layer, 0);
 *   const optimizer = new AdamW(layer.parameters());
 *   return () => {
 *     using _step = scope();
 *     optimizer.zeroGrad();
 *     layer.call(zeros(device, [8, 4096])).sum().backward();
 *     optimizer.step();
 *   };
 * }, { worldSize: 64 });
 * if (terms.parameters !== 4096 * 4096 * 4 / 64) throw new Error("a rank holds another shard");
 * if (peakBytes < terms.gathered + terms.optimizer) throw new Error("terms do not add up");
 * if (collectives.map(({ kind }) => kind).join() !== "gather,reduce-scatter") throw new Error("other calls");
 * ```
 */
export async function dryRun(
  setup: (run: Run) => (() => unknown) | Promise<() => unknown>,
  { rank = 0, localWorldSize, axes, device: given, steps = 2, cpuMath, ...planes }: DryRunOptions,
): Promise<DryRun> {
  using opened = new DisposableStack();
  const openCpu = async (): Promise<Device> => {
    const math = cpuMath === undefined ? {} : { cpuMath };
    const cpu = await openDevice("cpu", { memoryBytes: 2 ** 24, threads: 1, ...math });
    return opened.adopt(cpu, () => cpu.dispose());
  };
  const device = new DryDevice(given === "cuda" ? await openAbsentCard() : given ?? await openCpu());
  const hosts = localWorldSize === undefined ? undefined : { launcher: "torchrun", localWorldSize } as const;
  const { standsFor = backendOf(device, planes.worldSize, hosts) } = planes;
  const { allocator } = device;
  const group = openDry(device, { ...planes, standsFor, rank, ranksPerHost: planes.ranksPerHost ?? localWorldSize });
  const run = new Run({ device, group, localWorldSize, axes, print: () => {} });
  const step = await setup(run);
  await step();
  const before = allocator.stats.highest;
  const collectives: CollectiveUse[] = [];
  /** Places of messages among them. */
  const messages = new Map<Call, number>();
  let bytesCommunicated = 0;
  const flopsSoFar = (): number => [...device.uses.values()].reduce((sum, use) => sum + use.flops, 0);
  const end = group.observe((call, { size, worldRanks }) => {
    const { kind, unit, phase, count } = call;
    const received = RECEIVED[kind];
    if (received === undefined) return;
    // The call counts the bytes of one rank's shard.
    const bytes = kind === "all-gather" ? count * size : byteLengthOf(call);
    const hosts = new Set(worldRanks.map((rank) => Math.floor(rank / run.localWorldSize))).size;
    const moved = received(bytes, size);
    const use = { kind, unit, phase, bytes, received: moved, hosts, flopsBefore: flopsSoFar() };
    if (!isCollective(call)) messages.set(call, collectives.length);
    collectives.push(use);
    bytesCommunicated += moved;
  }, (call) => {
    const place = messages.get(call);
    const use = place === undefined ? undefined : collectives[place];
    if (place === undefined || use === undefined || flopsSoFar() === use.flopsBefore) return;
    collectives[place] = { ...use, flopsAwaited: flopsSoFar() };
  });
  allocator.resetPeak();
  device.offload.resetPeak();
  device.resetUses();
  await step();
  end();
  const flops = flopsSoFar();
  for (let taken = 2; taken < steps; taken++) await step();
  const highest = Math.max(before, allocator.stats.highest) - allocator.begin;
  return { ...memoryPeak(run), highest, bytesCommunicated: Math.ceil(bytesCommunicated), collectives, flops };
}
