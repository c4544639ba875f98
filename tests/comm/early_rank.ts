/** A rank that ends before it joins, or joins late, as its first argument says: `1:exit=3 0:sleep=500`. @module */
import assert from "node:assert/strict";
import process from "node:process";
import { joinHosts } from "../../src/comm/hosts/join.ts";
import { openProcessGroup } from "../../src/comm/registry.ts";
import { readRankEnvironment } from "../../src/runtime/rank_environment.ts";
import { tellUncaughtErrors } from "../../src/train/failure.ts";
import { openCommDevice } from "../support/comm_device.ts";

tellUncaughtErrors();
const { masterAddr: address, masterPort: port, ...place } = readRankEnvironment() ?? assert.fail();
const [orders = "", where] = process.argv.slice(2);
for (const order of orders.split(" ").filter((text) => text.startsWith(`${place.rank}:`))) {
  const [what, value] = order.slice(order.indexOf(":") + 1).split("=");
  if (what === "sleep") await new Promise((resolve) => setTimeout(resolve, Number(value)));
  else if (what === "throw") throw new TypeError("no such column");
  else {
    process.stderr.write("a last \u001b[31mred\u001b[0m word\u0008\n");
    process.exit(Number(value));
  }
}
if (where === "hosts") {
  assert.ok(address !== undefined && port !== undefined);
  const control = await joinHosts({ ...place, address, port, token: process.env["FULLYSHARD_TOKEN"] ?? assert.fail() });
  control.exchange(new Uint8Array(1));
  control.dispose();
} else {
  using group = await openProcessGroup({ device: await openCommDevice(), stagingBytes: 2 ** 20 });
  group.barrier("joined");
}
process.stdout.write("joined all\n");
