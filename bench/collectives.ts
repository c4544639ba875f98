/**
 * Collectives of two ranks on one host, against gloo, and against the better of Open MPI and MPICH.
 *
 * @module
 */
import { launch } from "./process.ts";
import { mpiSide } from "./mpi.ts";
import { program, type Subject } from "./subject.ts";

/** Bytes of the whole array, over all ranks. */
const SIZES = ["64KiB", "1MiB", "16MiB", "64MiB"] as const;

/** Microseconds of a call, the best of many rounds. */
export const COLLECTIVES: Subject = {
  name: "collectives",
  unit: "us",
  higherIsBetter: false,
  isApart: true,
  cases: [
    { name: "all-reduce-8B", target: 80, peers: ["torch", "mpi"] },
    ...SIZES.map((size) => ({
      name: `reduce-scatter-${size}`,
      target: 12,
      targets: { mpi: 2 },
      peers: ["torch", "mpi"] as const,
    })),
    ...SIZES.map((size) => ({
      name: `gather-${size}`,
      target: 8,
      targets: { mpi: size === "64MiB" ? 1 : 1.2 },
      peers: ["torch", "mpi"] as const,
    })),
  ],
  ours: program(({ runtime }, names) => launch(runtime, 2, "bench/ranks/collectives.ts", ...names)),
  peers: {
    torch: program(({ python }, names) => [
      python,
      ...["-m", "torch.distributed.run", "--nproc_per_node", "2", "bench/peers/collectives.py"],
      ...names,
    ]),
    mpi: mpiSide("collectives_mpi.py"),
  },
};
