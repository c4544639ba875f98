/**
 * NCCL, collectives between NVIDIA GPUs (`nccl.h`): table, constants, structs, no logic. Communicators are made
 * non-blocking, so `ncclInProgress` is an ordinary result: ask `ncclCommGetAsyncError` until it is over.
 *
 * @module
 */
import type { LibrarySpec } from "../library.ts";

/** Constants, with their C names. */
export const NCCL_CONSTANTS = {
  NCCL_UNIQUE_ID_BYTES: 128,
  NCCL_SPLIT_NOCOLOR: -1,
  // flags of ncclCommWindowRegister
  NCCL_WIN_DEFAULT: 0,
  NCCL_WIN_COLL_SYMMETRIC: 1,
  NCCL_WIN_REQUIRED_ALIGNMENT: 4096,
  // ncclConfig_t.CTAPolicy
  NCCL_CTA_POLICY_DEFAULT: 0,
  NCCL_CTA_POLICY_EFFICIENCY: 1,
  NCCL_CTA_POLICY_ZERO: 2,
  // ncclDataType_t
  ncclInt8: 0,
  ncclUint8: 1,
  ncclInt32: 2,
  ncclUint32: 3,
  ncclInt64: 4,
  ncclUint64: 5,
  ncclFloat16: 6,
  ncclFloat32: 7,
  ncclFloat64: 8,
  ncclBfloat16: 9,
  // ncclRedOp_t
  ncclSum: 0,
  ncclProd: 1,
  ncclMax: 2,
  ncclMin: 3,
  ncclAvg: 4,
  // ncclScalarResidence_t
  ncclScalarDevice: 0,
  ncclScalarHostImmediate: 1,
} as const;

/** `ncclUniqueId`. */
export const NCCL_UNIQUE_ID = {
  name: "ncclUniqueId",
  byteLength: 128,
  fields: { internal: { offset: 0, type: { bytes: 128 } } },
} as const;

/**
 * `ncclConfig_t` of 2.28.9. NCCL only ever appends members. A library reads those members that `size` covers and its own
 * release has, and takes defaults for members newer than `version`: so libraries of older and newer releases accept this.
 */
export const NCCL_CONFIG = {
  name: "ncclConfig_t",
  byteLength: 80,
  prefixes: { "2.23.4": 48, "2.28.9": 80 },
  initializer: "NCCL_CONFIG_INITIALIZER",
  fields: {
    size: { offset: 0, type: "usize", initial: 80 },
    magic: { offset: 8, type: "u32", initial: 0xcafebeef },
    version: { offset: 12, type: "u32", initial: 22809 },
    // NCCL_CONFIG_UNDEF_INT: the library chooses.
    blocking: { offset: 16, type: "i32", initial: -2147483648 },
    cgaClusterSize: { offset: 20, type: "i32", initial: -2147483648 },
    minCTAs: { offset: 24, type: "i32", initial: -2147483648 },
    maxCTAs: { offset: 28, type: "i32", initial: -2147483648 },
    netName: { offset: 32, type: "address" },
    splitShare: { offset: 40, type: "i32", initial: -2147483648 },
    trafficClass: { offset: 44, type: "i32", initial: -2147483648 },
    commName: { offset: 48, type: "address" },
    collnetEnable: { offset: 56, type: "i32", initial: -2147483648 },
    CTAPolicy: { offset: 60, type: "i32", initial: -2147483648 },
    shrinkShare: { offset: 64, type: "i32", initial: -2147483648 },
    nvlsCTAs: { offset: 68, type: "i32", initial: -2147483648 },
    nChannelsPerNetPeer: { offset: 72, type: "i32", initial: -2147483648 },
    nvlinkCentricSched: { offset: 76, type: "i32", initial: -2147483648 },
  },
} as const;

/** Functions of NCCL. */
export const NCCL_BINDINGS = {
  ncclGetErrorString: { args: ["i32"], result: "cstring", check: "none" },
  ncclGetLastError: { args: ["ncclComm_t"], result: "cstring", check: "none" },
  ncclGetVersion: { args: [{ out: "i32" }], result: "i32", check: "status" },
  ncclGetUniqueId: { args: [{ pointer: "ncclUniqueId" }], result: "i32", check: "status" },

  // (communicator, world size, rank, count of ids, ids, config)
  ncclCommInitRankScalable: {
    args: [
      { out: "ncclComm_t" },
      "i32",
      "i32",
      "i32",
      { pointer: "ncclUniqueId" },
      { pointer: "ncclConfig_t" },
    ],
    result: "i32",
    check: { status: ["ncclInProgress"] },
    since: "2.23",
  },
  // Before 2.23. (communicator, world size, id, rank, config)
  ncclCommInitRankConfig: {
    args: [
      { out: "ncclComm_t" },
      "i32",
      { value: "ncclUniqueId", byteLength: 128 },
      "i32",
      { pointer: "ncclConfig_t" },
    ],
    result: "i32",
    check: { status: ["ncclInProgress"] },
  },
  // The same, blocking.
  ncclCommInitRank: {
    args: [{ out: "ncclComm_t" }, "i32", { value: "ncclUniqueId", byteLength: 128 }, "i32"],
    result: "i32",
    check: "status",
  },
  // (communicator, color, key, new communicator, config)
  ncclCommSplit: {
    args: ["ncclComm_t", "i32", "i32", { out: "ncclComm_t" }, { pointer: "ncclConfig_t" }],
    result: "i32",
    check: { status: ["ncclInProgress"] },
  },
  ncclCommFinalize: { args: ["ncclComm_t"], result: "i32", check: { status: ["ncclInProgress"] } },
  ncclCommDestroy: { args: ["ncclComm_t"], result: "i32", check: { status: ["ncclInProgress"] } },
  ncclCommAbort: { args: ["ncclComm_t"], result: "i32", check: { status: ["ncclInProgress"] } },
  ncclCommGetAsyncError: { args: ["ncclComm_t", { out: "i32" }], result: "i32", check: "status" },
  ncclCommCount: { args: ["ncclComm_t", { out: "i32" }], result: "i32", check: "status" },
  ncclCommUserRank: { args: ["ncclComm_t", { out: "i32" }], result: "i32", check: "status" },
  ncclCommCuDevice: { args: ["ncclComm_t", { out: "i32" }], result: "i32", check: "status" },

  ncclMemAlloc: { args: [{ out: "address" }, "usize"], result: "i32", check: "status" },
  ncclMemFree: { args: ["address"], result: "i32", check: "status" },
  // (communicator, buffer, bytes, window, flags); the window is NULL where the communicator has no use for one
  ncclCommWindowRegister: {
    args: ["ncclComm_t", "address", "usize", { out: "ncclWindow_t" }, "i32"],
    result: "i32",
    check: { status: ["ncclInProgress"] },
    since: "2.27",
  },
  ncclCommWindowDeregister: {
    args: ["ncclComm_t", "ncclWindow_t"],
    result: "i32",
    check: { status: ["ncclInProgress"] },
    since: "2.27",
  },

  // (operation, scalar, type, residence, communicator); the operation multiplies by the scalar before it adds
  ncclRedOpCreatePreMulSum: {
    args: [{ out: "i32" }, "address", "i32", "i32", "ncclComm_t"],
    result: "i32",
    check: "status",
  },
  ncclRedOpDestroy: { args: ["i32", "ncclComm_t"], result: "i32", check: "status" },

  ncclGroupStart: { args: [], result: "i32", check: "status" },
  ncclGroupEnd: { args: [], result: "i32", check: { status: ["ncclInProgress"] } },
  // (from, to, count, type, operation, communicator, stream)
  ncclAllReduce: {
    args: ["address", "address", "usize", "i32", "i32", "ncclComm_t", "cudaStream_t"],
    result: "i32",
    check: { status: ["ncclInProgress"] },
  },
  // (from, to, count that a rank gets, type, operation, communicator, stream)
  ncclReduceScatter: {
    args: ["address", "address", "usize", "i32", "i32", "ncclComm_t", "cudaStream_t"],
    result: "i32",
    check: { status: ["ncclInProgress"] },
  },
  // (from, to, count that a rank gives, type, communicator, stream)
  ncclAllGather: {
    args: ["address", "address", "usize", "i32", "ncclComm_t", "cudaStream_t"],
    result: "i32",
    check: { status: ["ncclInProgress"] },
  },
  // (from, to, count, type, root, communicator, stream)
  ncclBroadcast: {
    args: ["address", "address", "usize", "i32", "i32", "ncclComm_t", "cudaStream_t"],
    result: "i32",
    check: { status: ["ncclInProgress"] },
  },
  // (from, to, count, type, operation, root, communicator, stream)
  ncclReduce: {
    args: ["address", "address", "usize", "i32", "i32", "i32", "ncclComm_t", "cudaStream_t"],
    result: "i32",
    check: { status: ["ncclInProgress"] },
  },
  // (from, to, count between two ranks, type, communicator, stream)
  ncclAlltoAll: {
    args: ["address", "address", "usize", "i32", "ncclComm_t", "cudaStream_t"],
    result: "i32",
    check: { status: ["ncclInProgress"] },
    since: "2.28",
  },
  // (from, to, count that a rank gives or gets, type, root, communicator, stream)
  ncclGather: {
    args: ["address", "address", "usize", "i32", "i32", "ncclComm_t", "cudaStream_t"],
    result: "i32",
    check: { status: ["ncclInProgress"] },
    since: "2.28",
  },
  ncclScatter: {
    args: ["address", "address", "usize", "i32", "i32", "ncclComm_t", "cudaStream_t"],
    result: "i32",
    check: { status: ["ncclInProgress"] },
    since: "2.28",
  },
  // (buffer, count, type, peer, communicator, stream)
  ncclSend: {
    args: ["address", "usize", "i32", "i32", "ncclComm_t", "cudaStream_t"],
    result: "i32",
    check: { status: ["ncclInProgress"] },
  },
  ncclRecv: {
    args: ["address", "usize", "i32", "i32", "ncclComm_t", "cudaStream_t"],
    result: "i32",
    check: { status: ["ncclInProgress"] },
  },
} as const;

/** Names of statuses (`ncclResult_t`) but success, which is 0. */
export const NCCL_STATUSES: Readonly<Record<number, string>> = {
  1: "ncclUnhandledCudaError",
  2: "ncclSystemError",
  3: "ncclInternalError",
  4: "ncclInvalidArgument",
  5: "ncclInvalidUsage",
  6: "ncclRemoteError",
  7: "ncclInProgress",
  8: "ncclTimeout",
};

/** NCCL. */
export const NCCL: LibrarySpec<typeof NCCL_BINDINGS> = {
  name: "NCCL",
  bindings: NCCL_BINDINGS,
  statuses: {
    names: NCCL_STATUSES,
    textOf: "ncclGetErrorString",
    lastError: "ncclGetLastError",
  },
  oldest: "2.19",
  sonames: ["libnccl.so.2", "libnccl.so"],
  override: "FULLYSHARD_NCCL_LIBRARY",
  packageDirectories: ["nvidia/nccl/lib"],
  cuda: true,
  gives: "collectives between NVIDIA GPUs",
  remedy:
    "Install it with 'pip install nvidia-nccl-cu13' (in an active virtual environment), or for a driver of CUDA 12 " +
    "'pip install nvidia-nccl-cu12'",
};
