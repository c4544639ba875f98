/** Rank 1 of a test of `Pace`: it passes one moment after the other. @module */
import { workerData } from "node:worker_threads";
import { Pace } from "../../src/demo/pace.ts";

const pace = new Pace(workerData);
for (;;) pace.pass(1, () => {});
