/** The suite over processes, and over processes of two runtimes. @module */
import { test } from "node:test";
import { conformPlanes } from "../conformance/planes.ts";
import { programOf, RUNTIME } from "../support/rank_process.ts";

conformPlanes("shm", [1, 2, 3, 4], { over: "shm" });
// Staging so small that everything takes many rounds.
conformPlanes("shm with little staging", [3], { over: "shm", planes: { stagingBytes: 16384 } });
conformPlanes("shm that copies", [2], { over: "shm", planes: { mapping: "copy" } });
// Windows lie in shared pages only where every rank can have them.
conformPlanes("shm of which one rank copies", [3], {
  over: "shm",
  planes: (rank) => rank === 1 ? { mapping: "copy" } : {},
});
const other = RUNTIME === "bun" ? "deno" : "bun";
if (programOf(other) === undefined) test("shm across runtimes", { skip: `needs ${other} in node_modules` }, () => {});
else conformPlanes("shm across runtimes", [2, 3], { over: "shm", runtimes: ["bun", "deno"] });
