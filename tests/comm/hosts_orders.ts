/** A rank of several hosts that does what its arguments say, and prints what was reported to it and how it ended. @module */
import assert from "node:assert/strict";
import process from "node:process";
import { joinHosts } from "../../src/comm/hosts/join.ts";
import { sleep } from "../conformance/values.ts";

const [rank = 0, worldSize = 0, localWorldSize = 0, port = 0] = process.argv.slice(2, 6).map(Number);
const say = (text: string): void => void process.stdout.write(`${text}\n`);
const control = await joinHosts({
  rank,
  worldSize,
  localWorldSize,
  port,
  address: "127.0.0.1",
  token: "a secret of the tests",
  reportSeconds: 0.5,
  timeoutSeconds: 8,
  joinTimeoutSeconds: 30,
  report: say,
});
say("joined");
let sequence = 0;
try {
  for (const order of process.argv.slice(6)) {
    const [what = "", unit = ""] = order.split(":");
    if (what === "sleep") sleep(Number(unit));
    else if (what === "throw") throw new Error("out of coffee");
    else if (what === "leave") control.dispose();
    else {
      const facts = { phase: undefined, dtype: undefined, count: 0, detail: 0, step: 0 };
      control.announce({ ...facts, kind: "barrier", unit, sequence: ++sequence });
      const parts = control.exchange(Uint8Array.of(rank));
      assert.deepEqual(parts.map(([value]) => value), Array.from({ length: worldSize }, (_, r) => r));
    }
  }
  say("well");
} catch (error) {
  say(String(error));
  control.abort(String(error));
}
control.dispose();
