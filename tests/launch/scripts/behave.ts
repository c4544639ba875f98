/**
 * A rank that behaves as told: `<rank>:<behavior>` for each rank, where a behavior is `ok`, `exit=<code>`, `kill`,
 * `throw`, `wait`, `stubborn` (ignores signals), `child` (waits with a process of its own) or `apart` (that leads a group).
 *
 * @module
 */

import { spawn } from "node:child_process";
import process from "node:process";

const rank = process.env["RANK"] ?? "";
const behavior = process.argv.slice(2).find((text) => text.startsWith(`${rank}:`))?.slice(rank.length + 1) ?? "ok";

function wait(): void {
  setInterval(() => {}, 1000);
}

process.stdout.write(`pid ${process.pid}\n`);
const [name, value] = behavior.split("=");
switch (name) {
  case "exit":
    process.stderr.write("about to fail\nwith a partial last line");
    process.exitCode = Number(value);
    break;
  case "kill":
    process.kill(process.pid, "SIGKILL");
    wait();
    break;
  case "throw":
    throw new Error("thrown by the script");
  case "wait":
    wait();
    break;
  case "stubborn":
    process.on("SIGTERM", () => process.stdout.write("refuses SIGTERM\n"));
    process.on("SIGINT", () => process.stdout.write("refuses SIGINT\n"));
    process.stdout.write("ready\n");
    wait();
    break;
  case "child":
  case "apart": {
    const child = spawn("sleep", ["1000"], { stdio: "ignore", detached: name === "apart" });
    process.stdout.write(`child ${child.pid}\n`);
    wait();
    break;
  }
}
