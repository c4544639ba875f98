/**
 * oneDNN's C interface for matrix products: table, constants and status names, no logic (that is
 * `src/device/wasm/gemm_onednn.ts`). Matrices are row-major; the `char` arguments are 'N' or 'T'. From the headers of
 * oneDNN 2.x and 3.x (`dnnl.h`, `dnnl_common_types.h`), which agree in these, but for the name of status 4. The bfloat16
 * product is exported by both and declared in no public header; the tests hold it to the other's meaning.
 *
 * @module
 */
import type { LibrarySpec } from "../library.ts";
import type { StatusWords } from "../types.ts";

/** `char` arguments. */
export const N = 78;
export const T = 84;

/** `dnnl_status_t`. */
export const DNNL_STATUS: StatusWords = {
  names: {
    1: "dnnl_out_of_memory",
    2: "dnnl_invalid_arguments",
    3: "dnnl_unimplemented",
    4: "dnnl_last_impl_reached",
    5: "dnnl_runtime_error",
    6: "dnnl_not_required",
  },
};

/** Byte offsets in `dnnl_version_t`, and its bytes as far as they are read. */
export const DNNL_VERSION_T = { byteLength: 12, major: 0, minor: 4, patch: 8 } as const;

/** Functions of oneDNN. */
export const ONEDNN_BINDINGS = {
  dnnl_version: { args: [], result: "address", check: "notNull" },
  // (transa, transb, M, N, K, alpha, A, lda, B, ldb, beta, C, ldc)
  dnnl_sgemm: {
    args: ["i32", "i32", "i64", "i64", "i64", "f32", "address", "i64", "address", "i64", "f32", "address", "i64"],
    result: "i32",
    check: "status",
  },
  dnnl_gemm_bf16bf16f32: {
    args: ["i32", "i32", "i64", "i64", "i64", "f32", "address", "i64", "address", "i64", "f32", "address", "i64"],
    result: "i32",
    check: "status",
    optional: true,
  },
} as const;

/** oneDNN, built for GNU OpenMP or sequential. */
export const ONEDNN: LibrarySpec<typeof ONEDNN_BINDINGS> = {
  name: "oneDNN",
  bindings: ONEDNN_BINDINGS,
  statuses: DNNL_STATUS,
  sonames: ["libdnnl.so.3", "libdnnl.so.2", "libdnnl.so"],
  override: "FULLYSHARD_ONEDNN_LIBRARY",
  packageDirectories: [],
  gives: "matrix products on the CPU, float32 and bfloat16, where native kernels do not run",
  remedy: "Install it with 'pip install onednn-cpu-gomp==2023.2.0' (in an active virtual environment) or " +
    "'apt install libdnnl2'",
};
