/** The transport suite over `shm`, with real processes, and what is particular to it. @module */
import { test } from "node:test";
import assert from "node:assert/strict";
import { conformTransport } from "../conformance/transport.ts";
import type { Outcome, Runner } from "../conformance/transport.ts";
import { programOf, RUNTIME, startRank } from "../support/rank_process.ts";
import type { ShmOptions } from "../../src/comm/transports/shm.ts";
import type { ShmBatch } from "./shm_rank.ts";

const RANK = new URL("./shm_rank.ts", import.meta.url);
let runs = 0;

function inProcesses(more: Partial<ShmOptions>, runtimes: readonly ("bun" | "deno")[]): Runner {
  return async (size, scenarios) => {
    const run = `test-${crypto.randomUUID()}-${runs++}`;
    const ranks = Array.from({ length: size }, (_, rank) => {
      const options = { apertureBytes: 2 ** 22, timeoutSeconds: 20, joinTimeoutSeconds: 20, ...more };
      const batch: ShmBatch = { scenarios, options: { ...options, rank, worldSize: size, run } };
      return startRank(RANK, [JSON.stringify(batch)], { runtime: runtimes[rank % runtimes.length] ?? RUNTIME });
    });
    const codes = await Promise.all(ranks.map((rank) => rank.ended));
    return ranks.map(({ stdout, stderr }, rank): readonly Outcome[] => {
      assert.equal(codes[rank], 0, `rank ${rank}: ${stderr}`);
      return JSON.parse(stdout);
    });
  };
}

conformTransport("shm", [2, 3, 4], inProcesses({}, [RUNTIME]));
conformTransport("shm of one rank", [1], inProcesses({}, [RUNTIME]));
conformTransport("shm with a small aperture", [3], inProcesses({ apertureBytes: 16384 }, [RUNTIME]));
conformTransport("shm that copies", [2], inProcesses({ mapping: "copy" }, [RUNTIME]));
const other = RUNTIME === "bun" ? "deno" : "bun";
if (programOf(other) === undefined) test("shm across runtimes", { skip: `needs ${other} in node_modules` }, () => {});
else conformTransport("shm across runtimes", [2], inProcesses({}, ["bun", "deno"]));
