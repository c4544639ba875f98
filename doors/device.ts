/**
 * Devices: memory, kernels, streams, the dtypes that they compute in.
 *
 * @module
 */

export { dtypeFrom, DTYPES, float64, int64, uint8 } from "../src/dtype.ts";
export type { Device, DevicePtr, PortableMath } from "../src/device/device.ts";
export type { BinaryOp, CompareOp, ReduceOp, UnaryOp } from "../src/device/kernels/signature.ts";
export type { ArgsOf, KernelName, Kernels } from "../src/device/kernels/table.ts";
export type { DeviceTraits, HostViews, NonTemporalCopies } from "../src/device/traits.ts";
export type { DeviceGraph, DeviceGraphs, GraphPlan, HostWork } from "../src/device/graphs.ts";
export type { DeviceStatus, Fault } from "../src/device/status.ts";
export type { Allocator, MemoryHolder, MemoryKind, MemoryStats, MemoryTerms } from "../src/device/allocator.ts";
export { type DeviceOptions, openDevice } from "../src/device/registry.ts";
export { openFilePool, type StatePool } from "../src/device/state_pool.ts";
export type { MemoryPlace, OffloadPool } from "../src/device/offload.ts";
export type { Attention } from "../src/device/attention.ts";
export type { CpuDeviceOptions, CpuMath } from "../src/device/cpu.ts";
export type { CollectiveUse, MemoryPeak } from "../src/train/dry_run.ts";

// Types that the types above refer to.
export type { NO_TERMS } from "../src/device/allocator.ts";
export type { deviceAddress } from "../src/device/device.ts";
export type { DeviceScalar, DeviceScalars } from "../src/device/scalars.ts";
export type { Arguments, KernelArgs, OPS } from "../src/device/kernels/signature.ts";
export type { Table } from "../src/device/kernels/table.ts";
export type { ATTENTION } from "../src/device/attention.ts";
export type { CPU_MATH } from "../src/device/cpu.ts";
export type { BlockSource, Buffer } from "../src/device/buffer.ts";
export type { Pauses } from "../src/device/pauses.ts";
export type { DeviceEvent, Stream, StreamName, STREAMS, Streams } from "../src/device/stream.ts";
export type {
  IDENTITY_EVENT,
  KernelFacts,
  KernelTimes,
  Span,
  Trace,
  TraceCategory,
  TraceFacts,
  TraceIdentity,
  TraceOptions,
  TraceRecord,
  TraceSink,
  Track,
  TRACKS,
} from "../src/runtime/trace.ts";
