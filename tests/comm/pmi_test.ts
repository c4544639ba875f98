/** The words of a rank to a launcher of MPICH's kind, which the test plays. @module */
import assert from "node:assert/strict";
import { Duplex } from "node:stream";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { startRank } from "../support/rank_process.ts";

/** Time that a launcher may take on a busy machine: a process that waits for nothing ends much earlier. */
const SLOW_MS = 1000;

for (const [how, exitCode] of [["caught", 3], ["uncaught", 1]] as const) {
  test(`a rank that fails before MPI, ${how}, waits for its launcher's answers`, { timeout: 60_000 }, async () => {
    const rank = startRank(new URL("refused_rank.ts", import.meta.url), [how], {
      env: { PMI_FD: "3", PMI_RANK: "1", PMI_SIZE: "2" },
      hasLauncher: true,
    });
    const stream = rank.child.stdio[3];
    assert.ok(stream instanceof Duplex);
    const lines = stream[Symbol.asyncIterator]();
    const next = async (): Promise<string> => String((await lines.next()).value);

    assert.equal(await next(), "cmd=init pmi_version=1 pmi_subversion=1\n");
    await sleep(SLOW_MS);
    assert.equal(rank.stderr, "", "it goes on before the answer");
    stream.write("cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n");
    assert.equal(await next(), `cmd=abort exitcode=${exitCode}\n`);
    await sleep(SLOW_MS);
    assert.equal(rank.child.exitCode, null, "it ends before it is killed");
    rank.child.kill("SIGKILL");
    await rank.ended;
    assert.equal(rank.child.signalCode, "SIGKILL");
    assert.equal([...rank.stderr.matchAll(/error: no such launcher/gi)].length, 1, rank.stderr);
  });
}
