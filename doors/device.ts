/**
 * Devices: memory, kernels, streams, the dtypes that they compute in.
 *
 * @module
 */

export { dtypeFrom, DTYPES, float64, int64, uint8 } from "../src/dtype.ts";
export type { Device, DevicePtr, ExactMath } from "../src/device/device.ts";
export type { BinaryOp, ReduceOp, UnaryOp } from "../src/device/kernels/signature.ts";
export type { ArgsOf, KernelName, Kernels } from "../src/device/kernels/table.ts";
export type { DeviceStatus, Fault } from "../src/device/status.ts";
export type { Allocator, MemoryKind, MemoryStats, MemoryTerms } from "../src/device/allocator.ts";
export { type DeviceOptions, openDevice } from "../src/device/registry.ts";
export type { CpuDeviceOptions, CpuMath } from "../src/device/cpu.ts";
export type { CollectiveUse, MemoryPeak } from "../src/train/dry_run.ts";
