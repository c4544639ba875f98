/** The suite over processes, and over processes of two runtimes: the runtime that starts them makes no difference. @module */
import { test } from "node:test";
import { conformPlanes } from "../conformance/planes.ts";
import { programOf, RUNTIME } from "../support/rank_process.ts";
import { onlyInAll, shareOf, usualFirst } from "../support/share.ts";
import type { WorldOptions } from "../support/world.ts";

conformPlanes("shm", shareOf(usualFirst([1, 2, 3, 4], (place) => place === 2)), { over: "shm" });
for (
  const [name, size, planes] of shareOf<readonly [string, number, NonNullable<WorldOptions<unknown>["planes"]>]>([
    // Staging so small that everything takes many rounds.
    ["little staging", 3, { stagingBytes: 16384 }],
    ["copies", 2, { mapping: "copy" }],
    // Windows lie in shared pages only where every rank can have them.
    ["one rank that copies", 3, (rank) => rank === 1 ? { mapping: "copy" } : {}],
  ])
) conformPlanes(`shm with ${name}`, [size], { over: "shm", planes });
const other = RUNTIME === "bun" ? "deno" : "bun";
if (programOf(other) === undefined) test("shm across runtimes", { skip: `needs ${other} in node_modules` }, () => {});
else conformPlanes("shm across runtimes", shareOf([2, ...onlyInAll([3])]), { over: "shm", runtimes: ["bun", "deno"] });
