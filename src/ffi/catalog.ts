/**
 * Native libraries that `fullyshard doctor` looks for and this version does not use: where each lies, and what it would give.
 *
 * @module
 */
import type { LibrarySource } from "./library.ts";

/** MPI, of either ABI. */
export const MPI: LibrarySource = {
  name: "MPI",
  sonames: ["libmpi_abi.so.1", "libmpi.so.40", "libmpi.so.12", "libmpich.so.12"],
  override: "FULLYSHARD_MPI_LIBRARY",
  packageDirectories: [],
  gives: "collectives between hosts on the CPU",
  used: false,
  remedy: "This version does not use it: there is no need to install it",
};
