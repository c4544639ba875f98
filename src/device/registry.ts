/**
 * The list of devices.
 *
 * @module
 */
import { UnsupportedError } from "../errors.ts";
import { whichAre } from "../words.ts";
import { type CpuDeviceOptions, openCpuDevice } from "./cpu.ts";
import type { Device } from "./device.ts";

/** Options of {@link openDevice}. */
export type DeviceOptions = CpuDeviceOptions;

const OPENERS: Readonly<Record<string, (options: DeviceOptions) => Promise<Device>>> = { cpu: openCpuDevice };

/**
 * Opens a device. A device that is not there is an error: nothing else is chosen instead.
 *
 * @param name `cpu` or `cpu:0`
 * @throws {UnsupportedError} if there is no such device
 * @example
 * ```ts
 * import { openDevice } from "fullyshard/device";
 * const device = await openDevice("cpu", { cpuMath: "wasm" });
 * if (device.mathName !== "wasm") throw new Error("wrong");
 * ```
 */
export function openDevice(name: string, options: DeviceOptions = {}): Promise<Device> {
  const kind = name.replace(/:0$/, "");
  const open = Object.hasOwn(OPENERS, kind) ? OPENERS[kind] : undefined;
  if (open === undefined) {
    throw new UnsupportedError(`Cannot open device '${name}': ${whichAre(Object.keys(OPENERS), "available")}`);
  }
  return open(options);
}
