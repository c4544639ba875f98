/**
 * The CPU device passes the suite of devices with each of who may compute on it.
 *
 * @module
 */
import { type NativeDeviceOptions, openNativeDevice } from "../../src/device/native/device.ts";
import { LEVEL_NAMES } from "../../src/device/native/library.ts";
import { openDevice } from "../../src/device/registry.ts";
import { conformDevice } from "../conformance/device.ts";
import { OWN_PRODUCT_PROPERTIES } from "../conformance/kernels/products.ts";
import { OWN_QUANTIZED_PROPERTIES } from "../conformance/kernels/quantized.ts";
import { available } from "../support/available.ts";
import { onlyInAll, shareOf, usualFirst } from "../support/share.ts";

const memoryBytes = 2 ** 27;
const OWN_PROPERTIES = { ...OWN_PRODUCT_PROPERTIES, ...OWN_QUANTIZED_PROPERTIES };

// All modules and libraries give the bits of `same_bits_test.ts`; of those that multiply and add at once, the gate takes one.
for (const cpuMath of ["wasm", ...onlyInAll(["wasm-relaxed"] as const)] as const) {
  conformDevice(cpuMath, await openDevice("cpu", { cpuMath, memoryBytes }), "", OWN_PROPERTIES);
}

// A library computes the same whichever runtime opens it. With threads, pieces are of one element: what can be cut, is.
for (
  const [name, options] of shareOf(usualFirst<[string, NativeDeviceOptions]>([
    ["native v3", { level: "v3" }],
    ["native v4", { level: "v4" }],
    ["native v4-bf16", { level: "v4-bf16" }],
    ["native with 3 threads", { threads: 3, leastWork: 1 }],
    ["native neon", { level: "neon" }],
  ], (place) => place > 2))
) {
  const device = await available(openNativeDevice({ ...options, memoryBytes }));
  const wanted = options.level === undefined ? "a processor of native kernels" : LEVEL_NAMES[options.level];
  conformDevice(name, device, `this is no Linux on ${wanted}`, OWN_PROPERTIES);
}
