/**
 * Runs over several launchers, as over hosts: each is lost in turn, with its ranks and its memory, the leading one too, and one comes
 * back. Launchers are on one machine, so that their ranks join by shared memory; their copies go over the network all the same.
 *
 * @module
 */
import assert from "node:assert/strict";
import process from "node:process";
import { ONE_STREAM, Story } from "../../scripts/elastic/story.ts";
import { processesOf, signal } from "../../scripts/faults/members.ts";
import { freePort } from "../../src/launch/hosts/wire.ts";
import { longTest, sharedTest } from "../support/share.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";
import { essence, flagsIn, metricLines, run, type Running, startRun } from "../train/runs.ts";

/** Three ranks take 4 samples each; two take 6 in two micro-batches, and one 12 in three. */
const BATCH = ["--global-batch", "12", "--schedule", "constant", "--steps", "100000"];
const MICRO_BATCHES: Readonly<Record<number, number>> = { 3: 1, 2: 2, 1: 3 };

/** The launchers of three hosts with a rank each. */
class Hosts {
  readonly #folder: TemporaryDirectory;
  readonly #endpoints: readonly string[];
  readonly #flags: readonly string[];

  constructor(folder: TemporaryDirectory, ports: readonly number[], flags: readonly string[]) {
    this.#folder = folder;
    this.#endpoints = ports.map((port) => `127.0.0.1:${port}`);
    this.#flags = flags;
  }

  start(host: number): Running {
    this.#folder.write("memory/.keep", "");
    const env = { FULLYSHARD_TOKEN: "secret", FULLYSHARD_SHM_DIRECTORY: this.#folder.file("memory") };
    const place = [
      "--nnodes",
      `1:${this.#endpoints.length}`,
      "--node-rank",
      String(host),
      "--rdzv-endpoint",
      this.#endpoints.join(","),
    ];
    const flags = [...place, "--max-restarts", "5", ...this.#flags];
    return startRun(flagsIn(this.#folder, ...BATCH), { ranks: 1, env, allowAll: true, flags, shell: ONE_STREAM });
  }
}

/** Kills a launcher and its ranks at once, as if the host had ended. */
function kill({ child }: Running): void {
  const { launchers, ranks, spares } = processesOf(child);
  for (const pid of [...launchers, ...ranks.map(({ pid }) => pid), ...spares]) signal(pid, "SIGKILL");
}

/** Waits for `count` further steps. */
async function stepsOf(story: Story, count: number): Promise<void> {
  const done = Promise.withResolvers<void>();
  story.onStep = () => --count === 0 && done.resolve();
  await done.promise;
}

sharedTest("a run goes on from memory without a host that is lost", { timeout: 120_000 }, async () => {
  using folder = temporaryDirectory();
  const hosts = new Hosts(folder, [await freePort(), await freePort()], ["--redundancy", "1"]);
  const [first, second] = [hosts.start(0), hosts.start(1)];
  // The first host may begin alone, and takes the second one in at a step's border then. Copies of states follow the steps: after a
  // hundred both hosts have some.
  await first.until(/over 2 ranks /);
  await stepsOf(new Story(first), 100);
  kill(second);
  await first.until(/over 2 ranks [^]*over 1 rank [^]*Resumed from memory at step \d+\n/);
  await stepsOf(new Story(first), 2);
  for (const pid of processesOf(first.child).launchers) process.kill(pid, "SIGTERM");
  const { code, stdout } = await first.ended;
  assert.equal(code, 143, stdout);
  const steps = metricLines(folder).map((line): number => JSON.parse(line).step);
  assert.deepEqual(steps, Array.from(steps, (_, i) => i + 1));
});

longTest(
  "hosts are lost and come back, and the run is the one that is resumed by hand",
  { timeout: 240_000 },
  async () => {
    using folder = temporaryDirectory();
    const ports = [await freePort(), await freePort(), await freePort()];
    const hosts = new Hosts(folder, ports, ["--redundancy", "1"]);
    const [first, second, third] = [hosts.start(0), hosts.start(1), hosts.start(2)];
    const began = new Story(first);
    await first.until(/step 3\//);
    kill(third);
    await first.until(/over 2 ranks [^]*Resumed from memory at step \d+\n/);
    await stepsOf(began, 3);
    const wentOn = new Story(second);
    kill(first);
    await second.until(/over 1 rank [^]*Resumed from memory at step \d+\n/);
    await stepsOf(wentOn, 3);
    const back = hosts.start(0);
    const cameBack = new Story(back);
    await back.until(/over 2 ranks [^]*Resumed from memory at step \d+\n/);
    await stepsOf(cameBack, 3);
    for (const pid of processesOf(second.child).launchers) process.kill(pid, "SIGTERM");
    const [ended, other] = [await second.ended, await back.ended];
    assert.deepEqual([ended.code, other.code], [143, 143], `${ended.stdout}\n${other.stdout}`);
    assert.match(ended.stdout, /the launcher that led is gone\n[^]*going on with 1 of at most 3 hosts/);
    assert.match(ended.stdout, /going on with 2 of at most 3 hosts \(as hosts come in\)/);
    const last = metricLines(folder).length;
    began.segments.push(...wentOn.segments, ...cameBack.segments);
    const worlds = began.worlds(last);
    assert.deepEqual(worlds.map(({ ranks }) => ranks), [3, 2, 1, 2]);
    for (const { ranks, last } of worlds) {
      const place = ["--out", folder.file("hand"), "--resume", "auto", "--stop-after", String(last)];
      const flags = flagsIn(folder, ...BATCH, ...place, "--micro-batches", String(MICRO_BATCHES[ranks]));
      const { code, stderr } = await run(flags, { ranks });
      assert.equal(code, 0, stderr);
    }
    assert.deepEqual(metricLines(folder).map(essence), metricLines(folder, "hand").map(essence));
  },
);
