/**
 * Every native library that `fullyshard doctor` looks for: where, what it gives, how to install it. Those without a
 * binding table are not used by this version: they are looked for, and not opened.
 *
 * @module
 */
import { CUBLASLT } from "./bindings/cublaslt.ts";
import { CUDART } from "./bindings/cudart.ts";
import { LIBC } from "./bindings/libc.ts";
import { NCCL } from "./bindings/nccl.ts";
import { NVRTC } from "./bindings/nvrtc.ts";
import { ONEDNN } from "./bindings/onednn.ts";
import type { LibrarySource } from "./library.ts";

const NOT_USED = "This version does not use it: there is no need to install it";

/** OpenBLAS. */
export const OPENBLAS: LibrarySource = {
  name: "OpenBLAS",
  sonames: ["libopenblas.so.0", "libopenblas.so", "libscipy_openblas.so"],
  override: "FULLYSHARD_OPENBLAS_LIBRARY",
  packageDirectories: ["scipy_openblas32/lib"],
  gives: "matrix products on the CPU, faster than WASM, where oneDNN is not to be had",
  used: false,
  remedy: NOT_USED,
};

/** MPI, of either ABI. */
export const MPI: LibrarySource = {
  name: "MPI",
  sonames: ["libmpi_abi.so.1", "libmpi.so.40", "libmpi.so.12", "libmpich.so.12"],
  override: "FULLYSHARD_MPI_LIBRARY",
  packageDirectories: [],
  gives: "collectives between hosts on the CPU",
  used: false,
  remedy: NOT_USED,
};

/** The libraries that `doctor` looks for and that nothing uses yet. */
export const PRESENCE_ONLY: readonly LibrarySource[] = [
  OPENBLAS,
  ...[CUDART, NCCL, CUBLASLT, NVRTC].map((source) => ({ ...source, used: false, remedy: NOT_USED })),
  MPI,
];

/** All libraries. */
export const LIBRARIES: readonly LibrarySource[] = [LIBC, ONEDNN, ...PRESENCE_ONLY];
