/**
 * The CPU device passes the suite of devices with each of its modules, and with matrix products by oneDNN.
 *
 * @module
 */
import { openDevice } from "../../src/device/registry.ts";
import { LibraryNotFoundError } from "../../src/errors.ts";
import { conformDevice } from "../conformance/device.ts";
import { WASM_PRODUCT_PROPERTIES } from "../conformance/kernels/products.ts";
import type { Device } from "../../src/device/device.ts";

const memoryBytes = 2 ** 27;

for (const cpuMath of ["wasm", "wasm-relaxed"] as const) {
  conformDevice(cpuMath, await openDevice("cpu", { cpuMath, memoryBytes }), "", WASM_PRODUCT_PROPERTIES);
}

async function openOnednn(): Promise<Device | undefined> {
  try {
    return await openDevice("cpu", { cpuMath: "onednn", memoryBytes });
  } catch (error) {
    if (error instanceof LibraryNotFoundError) return undefined;
    throw error;
  }
}

conformDevice("onednn", await openOnednn(), "oneDNN is not installed");
