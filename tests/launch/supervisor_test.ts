/**
 * Ranks that cannot be started, and what ranks say as they end.
 *
 * @module
 */

import assert from "node:assert/strict";
import process from "node:process";
import { test } from "node:test";
import { RankPool } from "../../src/launch/rank_pool.ts";
import { type RankStart, supervise } from "../../src/launch/supervisor.ts";
import { encodeControlLine } from "../../src/runtime/control_line.ts";
import { StatusTerminal } from "../../src/runtime/terminal.ts";
import { pidsAfter, untilDead } from "./launcher.ts";

const times = { noticeMs: 200, graceMs: 2000, userGraceMs: 2000 };

/** A rank that runs a shell's script. */
function shell(script: string, variables: Readonly<Record<string, string>> = {}): Omit<RankStart, "rank"> {
  return {
    command: { program: "/bin/sh", args: ["-c", script] },
    variables,
    shown: { stdout: true, stderr: true },
    keep: { stdout: undefined, stderr: undefined },
  };
}

/** Ranks by their number, from 0. */
function numbered(...ranks: readonly Omit<RankStart, "rank">[]): RankStart[] {
  return ranks.map((start, rank) => ({ rank, ...start }));
}

/** A terminal that keeps what it is sent. */
function keeping(said: string[]): StatusTerminal {
  const out = { isTTY: false, columns: 80, write: (text: string): boolean => said.push(text) > 0 };
  return new StatusTerminal(out, out);
}

test("supervise() stops the ranks that run when a later one cannot be started", { timeout: 30_000 }, async () => {
  const said: string[] = [];
  const waits = "echo pid $$; while :; do sleep 1; done";
  // No program can be given an argument with a null character, so spawn() throws.
  const starts = numbered(shell(waits), shell("exit 0 \0"), shell("echo pid 1"));
  const { exitCode, failures: [failure], stopped } = await supervise(starts, keeping(said), times);
  assert.equal(exitCode, 127);
  assert.equal(failure?.rank, 1);
  assert.match(failure?.detail ?? "", /^could not be started: .*null bytes/);
  assert.deepEqual(stopped, [0]);
  const pids = pidsAfter("pid", said.join(""));
  assert.equal(pids.length, 1, "rank 2 is not started any more");
  await untilDead(pids);
});

test(
  "supervise() hears what a rank says of its failure, though it be read after its end",
  { timeout: 30_000 },
  async () => {
    const record = { rank: 1, name: "FileError", message: "Cannot write", frames: [], uncaught: true, time: 5 };
    // A process of its own group goes on where the rank has ended.
    const late = `setsid sh -c 'sleep 0.6; printf "%s\\nits report\\n" "$LINE" >&2' & sleep 0.2; exit 1`;
    const said: string[] = [];
    const variables = { LINE: encodeControlLine({ failure: record }), PATH: process.env["PATH"] ?? "" };
    const { failures } = await supervise(numbered(shell("sleep 0.3; exit 3"), shell(late, variables)), keeping(said), {
      ...times,
      noticeMs: 5000,
    });
    assert.deepEqual(failures.map(({ rank }) => rank), [1, 0]);
    assert.deepEqual(failures[0]?.record, record);
    assert.equal(said.join(""), "", "the runtime's report is not shown");
  },
);

test("supervise() hears a rank that says why it failed after it was told to stop", { timeout: 30_000 }, async () => {
  const record = { name: "CollectiveError", message: "rank 0 died", frames: [], uncaught: false, followed: 0, time: 5 };
  // It takes longer than the others have to see a failure, as on a machine with too much to do.
  const slow = `trap 'printf "%s\\n" "$LINE" >&2; exit 1' TERM; while :; do sleep 0.1; done`;
  const variables = { LINE: encodeControlLine({ failure: record }), PATH: process.env["PATH"] ?? "" };
  const silent = "trap 'exit 1' TERM; while :; do sleep 0.1; done";
  const starts = numbered(shell("exit 7"), shell(slow, variables), shell(silent, variables));
  const { exitCode, failures, stopped } = await supervise(starts, keeping([]), times);
  assert.equal(exitCode, 7);
  assert.deepEqual(failures.map(({ rank }) => rank), [0, 1]);
  assert.deepEqual(failures[1]?.record, record);
  assert.deepEqual(stopped, [2]);
});

for (const throws of [true, false]) {
  test(
    `supervise() stops ranks whose output nobody reads, which ${throws ? "a write" : "an event"} tells`,
    { timeout: 30_000 },
    async () => {
      let fail = (_error: Error): void => assert.fail("nobody listens");
      let writes = 0;
      const out = {
        on: (_event: "error", listener: (error: Error) => void) => fail = listener,
        write: (): boolean => {
          writes++;
          const broken = Object.assign(new Error("broken pipe"), { code: "EPIPE" });
          if (throws) throw broken;
          setTimeout(() => fail(broken));
          return false;
        },
      };
      const starts = numbered(shell("while :; do echo line; sleep 0.05; done"), shell("while :; do sleep 1; done"));
      const { exitCode, failures } = await supervise(starts, new StatusTerminal(out, out), times);
      assert.deepEqual([exitCode, failures.length], [143, 0]);
      assert.ok(writes < 10, "what nobody reads is written no more");
    },
  );
}

test("supervise() gives places to processes that wait, and a lost one's to a spare", { timeout: 30_000 }, async () => {
  const wait = encodeControlLine({ waits: true });
  // Rank 1 is lost in its first place; the others leave theirs. In its next place each says what it was given, and ends.
  const script = `say() { printf '%s\\n' "$1"; printf '%s\\n' "$1" >&2; }
    if [ -z "$FULLYSHARD_ELASTIC_SPARE" ]; then
      echo "pid $$ is rank $RANK"
      [ "$RANK" = 0 ] && { printf '%s\\n' "$STAYS"; printf '%s\\n' "$BEGUN"; }
      [ "$RANK" = 1 ] && kill -9 $$
      printf '%s\\n' "$FAILED" >&2
    fi
    say "$WAIT"
    read -r line; echo "pid $$ takes $line"`;
  const failure = {
    name: "CollectiveError",
    message: "rank 1 died",
    frames: [],
    uncaught: false,
    followed: 1,
    time: 5,
  };
  const common = {
    ...{ WAIT: wait, PATH: process.env["PATH"] ?? "", FAILED: encodeControlLine({ failure }) },
    ...{ STAYS: encodeControlLine({ stays: true }), BEGUN: encodeControlLine({ begun: true }) },
  };
  const said: string[] = [];
  const starts = (run: string): RankStart[] =>
    numbered(...[0, 1].map((rank) => shell(script, { ...common, RANK: String(rank), FULLYSHARD_RUN_ID: run })));
  using pool = new RankPool({ program: "/bin/sh", args: ["-c", script] });
  const [parts, patient] = [[undefined, undefined, undefined, pool] as const, { ...times, noticeMs: 10_000 }];
  const lost = await supervise(starts("first"), keeping(said), patient, ...parts);
  assert.deepEqual(lost.failures.map(({ rank, record }) => [rank, record?.name]), [
    [1, undefined],
    [0, "CollectiveError"],
  ]);
  const [kept] = pidsAfter("pid", said.filter((text) => /is rank 0/.test(text)).join(""));
  const after = said.length;
  const next = await supervise(starts("second"), keeping(said), patient, ...parts);
  assert.deepEqual([next.exitCode, next.failures], [0, []]);
  const text = said.slice(after).join("");
  const taken = pidsAfter("pid", text);
  assert.equal(taken.length, 2, text);
  assert.ok(kept !== undefined && taken.includes(kept), "the rank that is left takes a place");
  assert.doesNotMatch(text, /is rank/, "the other place is the spare process's");
  assert.match(text, /takes \{"RANK":"0",.*"FULLYSHARD_RUN_ID":"second"/);
  assert.match(text, /takes \{"RANK":"1",.*"FULLYSHARD_RUN_ID":"second"/);
  await untilDead(taken);
});

test("a pool ends the processes that wait", { timeout: 30_000 }, async () => {
  const said: string[] = [];
  const waits = shell(`echo "pid $$"; printf '%s\\n' "$WAIT"; printf '%s\\n' "$WAIT" >&2; read -r line; sleep 60`, {
    WAIT: encodeControlLine({ waits: true }),
    PATH: process.env["PATH"] ?? "",
  });
  {
    using pool = new RankPool(waits.command);
    await supervise(numbered(waits), keeping(said), times, undefined, undefined, undefined, pool);
  }
  await untilDead(pidsAfter("pid", said.join("")));
});
