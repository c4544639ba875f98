/**
 * A rank that fails before it begins MPI, as one does whose variables are wrong. With the argument `caught` it prints the error itself
 * and ends with 3.
 *
 * @module
 */
import process from "node:process";
import { tellingEarlyEnd } from "../../src/comm/data/mpi/early_end.ts";

const refused = tellingEarlyEnd(() => Promise.reject(new Error("no such launcher")));
if (process.argv[2] === "caught") {
  try {
    await refused;
  } catch (error) {
    process.stderr.write(`${error}\n`);
    process.exitCode = 3;
  }
} else await refused;
