/** A rank that fails before it begins MPI, as one does whose variables are wrong. @module */
import process from "node:process";
import { tellingEarlyEnd } from "../../src/comm/data/mpi/early_end.ts";

try {
  await tellingEarlyEnd(() => Promise.reject(new Error("no such launcher")));
} catch (error) {
  process.stdout.write(`${error}\n`);
  process.exitCode = 3;
}
