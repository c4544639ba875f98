/**
 * Sharded checkpoints of two ranks, each with half of 16 float32 matrices: saved with fsync, loaded from a warm page cache, and how
 * long an asynchronous save keeps the ranks from training. The peer is PyTorch's DCP with its default writer, which syncs too.
 *
 * @module
 */
import { launch } from "./process.ts";
import { program, type Subject } from "./subject.ts";

const SIZES = ["5MB", "50MB", "500MB"] as const;

/** Milliseconds, the median of some rounds of one process. */
export const CHECKPOINT: Subject = {
  name: "checkpoint",
  unit: "ms",
  higherIsBetter: false,
  isApart: true,
  cases: ["save", "load", "async-save"].flatMap((what) =>
    SIZES.map((size) => ({ name: `${what}-${size}`, target: 1.3 }))
  ),
  ours: program(({ runtime }, names) => launch(runtime, 2, "bench/ranks/checkpoint.ts", ...names)),
  peers: {
    torch: program(({ python }, names) => [
      python,
      ...["-m", "torch.distributed.run", "--nproc_per_node", "2", "bench/peers/checkpoint.py"],
      ...names,
    ]),
  },
};
