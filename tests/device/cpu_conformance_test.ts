/**
 * The CPU device passes the suite of devices with each of who may compute on it.
 *
 * @module
 */
import { openNativeDevice } from "../../src/device/native/device.ts";
import { openDevice } from "../../src/device/registry.ts";
import { LibraryNotFoundError, UnsupportedError } from "../../src/errors.ts";
import { conformDevice } from "../conformance/device.ts";
import { OWN_PRODUCT_PROPERTIES } from "../conformance/kernels/products.ts";
import type { Device } from "../../src/device/device.ts";

const memoryBytes = 2 ** 27;

/** A device; undefined where it is not to be had here. */
async function tryOpen(open: Promise<Device>): Promise<Device | undefined> {
  try {
    return await open;
  } catch (error) {
    if (error instanceof LibraryNotFoundError || error instanceof UnsupportedError) return undefined;
    throw error;
  }
}

for (const cpuMath of ["wasm", "wasm-relaxed"] as const) {
  conformDevice(cpuMath, await openDevice("cpu", { cpuMath, memoryBytes }), "", OWN_PRODUCT_PROPERTIES);
}

for (const level of ["v3", "v4"] as const) {
  const device = await tryOpen(openNativeDevice({ level, memoryBytes }));
  conformDevice(`native ${level}`, device, `this is no Linux on x86-64-${level}`, OWN_PRODUCT_PROPERTIES);
}

const onednn = await tryOpen(openDevice("cpu", { cpuMath: "onednn", memoryBytes }));
conformDevice("onednn", onednn, "oneDNN is not installed");
