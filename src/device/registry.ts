/**
 * The list of devices.
 *
 * @module
 */
import { type KnownKeys, requireKnownKeys } from "../config/known_keys.ts";
import { UnsupportedError } from "../errors.ts";
import type { Environment } from "../runtime/env.ts";
import { whichAre } from "../words.ts";
import { type CpuDeviceOptions, openCpuDevice } from "./cpu.ts";
import type { Attention } from "./attention.ts";
import type { Device } from "./device.ts";
import type { DryModel } from "./dry/device.ts";

/**
 * Options of {@link openDevice}. Options of the CPU's computation count there only, except `threads`, which a card's offload uses
 * too.
 */
export interface DeviceOptions extends CpuDeviceOptions {
  /**
   * Largest size of the memory in bytes. @default of a card, its free memory; of the host, its memory with `native`, else 4 GiB,
   * which is also the most there
   */
  readonly memoryBytes?: number | undefined;
  /** Number of this process among its host's ranks: `cuda` is the card of that number. @default 0 */
  readonly localRank?: number | undefined;
  /** Code that computes attention on a card; the CPU takes `own` alone. @default own */
  readonly attention?: Attention | undefined;
  /** Receives a line for each kind of attention that cuDNN was asked for and cannot compute. @default no reports */
  readonly report?: ((text: string) => void) | undefined;
}

/** Names of the options of {@link openDevice}. */
export const DEVICE_OPTIONS: KnownKeys<DeviceOptions> = {
  ...{ memoryBytes: true, cpuMath: true, ranksOnHost: true, threads: true, lateStatus: true, trace: true },
  ...{ localRank: true, attention: true, report: true },
};

/** Opens a device, by its number if its name has one. */
type Opener = (index: number | undefined, options: DeviceOptions) => Promise<Device>;

const OPENERS: Readonly<Record<string, Opener>> = {
  cpu: (index = 0, options) => {
    if (options.attention === "cudnn") {
      const remedy = "Leave it out, or open 'cuda'";
      throw new UnsupportedError(
        `Cannot open device 'cpu' with attention 'cudnn', which computes on cards only. ${remedy}`,
      );
    }
    if (index === 0) return openCpuDevice(options);
    throw new UnsupportedError(`Cannot open device 'cpu:${index}': there is one CPU, 'cpu:0'`);
  },
  cuda: async (index, { localRank = 0, ranksOnHost = 1, memoryBytes, trace, threads, attention, report }) => {
    const { openCudaDevice } = await import("./cuda/device.ts");
    const options = { memoryBytes, trace, threads, attention, report };
    return await openCudaDevice(index ?? { localRank, ranksOnHost }, options);
  },
};

/** An absent card, for a dry device to stand for. */
export async function openAbsentCard(): Promise<DryModel> {
  const { openAbsentCard } = await import("./cuda/traits.ts");
  return await openAbsentCard();
}

/** Number of cards that this process may use, at least one. @throws {UnsupportedError} if there is none, with the reason */
export async function numCards(environment: Environment): Promise<number> {
  const { numCards } = await import("./cuda/libraries.ts");
  return await numCards(environment);
}

/** Names of devices, without a number. */
export const DEVICES: readonly string[] = Object.keys(OPENERS);

/**
 * Opens a device. If the device is not there, it fails: no other device is chosen instead.
 *
 * @param name `cpu`, or `cuda:0` for an NVIDIA GPU; `cuda` is this rank's, or the only one that it sees. A thread has one card
 * open at a time
 * @throws {ArgumentError} if an option is none of these
 * @throws {UnsupportedError} if there is no such device, or the thread has another card open
 * @throws {LibraryNotFoundError} if a library that it needs is not found
 * @example
 * ```ts
 * import { openDevice } from "fullyshard/device";
 * const device = await openDevice("cpu", { cpuMath: "wasm" });
 * if (device.mathName !== "wasm") throw new Error("wrong");
 * ```
 */
export async function openDevice(name: string, options: DeviceOptions = {}): Promise<Device> {
  requireKnownKeys("open a device", options, DEVICE_OPTIONS);
  const number = /:(\d+)$/.exec(name);
  const kind = number === null ? name : name.slice(0, number.index);
  const open = Object.hasOwn(OPENERS, kind) ? OPENERS[kind] : undefined;
  if (open === undefined) {
    throw new UnsupportedError(`Cannot open device '${name}': ${whichAre(DEVICES, "available")}`);
  }
  return await open(number === null ? undefined : Number(number[1]), options);
}
