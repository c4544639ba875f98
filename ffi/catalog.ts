/**
 * Native libraries that `fullyshard doctor` looks for and this version does not use: where each lies, and what it would give.
 *
 * @module
 */
import { CUBLASLT } from "./bindings/cublaslt.ts";
import { CUDART } from "./bindings/cudart.ts";
import { NCCL } from "./bindings/nccl.ts";
import { NVRTC } from "./bindings/nvrtc.ts";
import type { LibrarySource } from "./library.ts";

const NOT_USED = "This version does not use it: there is no need to install it";

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
  ...[CUDART, NCCL, CUBLASLT, NVRTC].map((source) => ({ ...source, used: false, remedy: NOT_USED })),
  MPI,
];
