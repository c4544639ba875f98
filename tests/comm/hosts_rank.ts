/** A rank of several hosts that meets the others over and over, and does nothing else. @module */
import assert from "node:assert/strict";
import process from "node:process";
import { joinHosts } from "../../src/comm/hosts/join.ts";
import { readRankEnvironment } from "../../src/runtime/rank_environment.ts";
import { tellUncaughtErrors } from "../../src/train/failure.ts";

tellUncaughtErrors();
const { masterAddr: address, masterPort: port, ...place } = readRankEnvironment() ?? assert.fail();
assert.ok(address !== undefined && port !== undefined);
const control = await joinHosts({ ...place, address, port, token: process.env["FULLYSHARD_TOKEN"] ?? assert.fail() });
process.stdout.write(`joined ${process.pid}\n`);
for (let sequence = 1;; sequence++) {
  const call = {
    kind: "exchange",
    unit: "again",
    phase: undefined,
    dtype: undefined,
    count: 8,
    detail: 0,
    step: 0,
  } as const;
  control.announce({ ...call, sequence });
  const parts = control.exchange(new Uint8Array(Float64Array.of(place.rank * sequence).buffer));
  const values = parts.map((bytes) => new Float64Array(bytes.buffer)[0]);
  assert.deepEqual(values, Array.from({ length: place.worldSize }, (_, rank) => rank * sequence));
  // Lets this process' output out.
  await new Promise((resolve) => setTimeout(resolve, 5));
}
