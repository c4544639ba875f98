/** A loop of one's own whose last rank throws in the second step. @module */
import { launch } from "../../../mod.ts";

await using run = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 26 });
run.group.barrier("step 1");
if (run.group.rank === run.group.size - 1) throw new RangeError("out of tea");
run.group.barrier("step 2");
