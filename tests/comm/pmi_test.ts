/** The words of a rank to a launcher of MPICH's kind, which the test plays. @module */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import process from "node:process";
import { Duplex } from "node:stream";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { RUNTIME } from "../support/rank_process.ts";

/** Time that a launcher may take on a busy machine: a process that waits for nothing ends much earlier. */
const SLOW_MS = 1000;

for (const [how, exitCode] of [["caught", 3], ["uncaught", 1]] as const) {
  test(`a rank that fails before MPI, ${how}, waits for its launcher's answers`, { timeout: 60_000 }, async () => {
    const script = fileURLToPath(new URL("refused_rank.ts", import.meta.url));
    const child = spawn(process.execPath, [...RUNTIME === "deno" ? ["run", "-A"] : ["run"], script, how], {
      env: { ...process.env, NO_COLOR: "1", PMI_FD: "3", PMI_RANK: "1", PMI_SIZE: "2" },
      stdio: ["ignore", "ignore", "pipe", "pipe"],
    });
    const ended = new Promise<NodeJS.Signals | number | null>((resolve) =>
      child.on("close", (code, signal) => resolve(signal ?? code))
    );
    let said = "";
    child.stderr?.on("data", (data) => said += String(data));
    const stream = child.stdio[3];
    assert.ok(stream instanceof Duplex);
    const lines = stream[Symbol.asyncIterator]();
    const next = async (): Promise<string> => String((await lines.next()).value);

    assert.equal(await next(), "cmd=init pmi_version=1 pmi_subversion=1\n");
    await sleep(SLOW_MS);
    assert.equal(said, "", "it goes on before the answer");
    stream.write("cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n");
    assert.equal(await next(), `cmd=abort exitcode=${exitCode}\n`);
    await sleep(SLOW_MS);
    assert.equal(child.exitCode, null, "it ends before it is killed");
    child.kill("SIGKILL");
    assert.equal(await ended, "SIGKILL");
    assert.equal([...said.matchAll(/error: no such launcher/gi)].length, 1, said);
  });
}
