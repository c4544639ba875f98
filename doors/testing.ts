/**
 * For tests of training code: worlds of ranks within one process, and numbers that are the same everywhere.
 *
 * @module
 */

export { openLoopback } from "../src/comm/data/loopback.ts";
export { type RankContext, runLoopback, serveRank } from "../src/comm/loopback_workers.ts";
export { keyOf, uniformInt } from "../src/random.ts";
