/**
 * A rank that sums with the others, step after step. Rank 1 does what the first argument says: `end` as all do, `throw`, `kill` itself,
 * `exit` without a word, or `go` on, until something is done to it from outside. Each rank writes what ends it to a file of its own in
 * the folder that the second argument names, as launchers lose lines of ranks that they kill.
 *
 * @module
 */
import { writeFileSync } from "node:fs";
import process from "node:process";
import { float32, launch } from "../../mod.ts";

const [how = "end", folder = "."] = process.argv.slice(2);
const STEPS = 40;
const run = await launch({ threads: 1, timeoutSeconds: 60, reportSeconds: 50 });
const { group, device } = run;
const say = (text: string): void => writeFileSync(`${folder}/${group.rank}.txt`, `${text}\n`, { flag: "a" });
const n = 1 << 18;
const ptr = device.allocator.allocate(4 * n, "sum");
device.copyIn(ptr, new Uint8Array(new Float32Array(n).fill(1).buffer));
say(`joined ${process.pid}`);
try {
  for (let step = 0; how === "go" || step < STEPS; step++) {
    group.step = step;
    if (group.rank === 1 && step === STEPS / 2) {
      if (how === "throw") throw new RangeError("out of coffee");
      if (how === "kill") process.kill(process.pid, "SIGKILL");
      if (how === "exit") process.exit(5);
    }
    group.allReduce(ptr, n, float32, { unit: "layers.3", phase: "backward" }).wait();
    device.copyIn(ptr, new Uint8Array(new Float32Array(n).fill(1).buffer));
    if (step === 2) say("steps");
  }
  say("ended in order");
} catch (error) {
  group.abort(String(error));
  say(String(error));
  process.exitCode = 3;
} finally {
  await run[Symbol.asyncDispose]();
}
