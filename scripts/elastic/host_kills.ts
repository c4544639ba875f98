/**
 * A run over three hosts, with a rank each, of which a rank or a whole host is killed at moments of chance that a seed decides: in steps
 * and saves, while launchers meet, while ranks start and load; rank 0's host too. A host comes back after a while. In the end the run must
 * be the one that is resumed by hand on one host, on the same numbers of ranks, bit for bit.
 *
 * Hosts are network namespaces that share no memory (`scripts/clusters/hosts.ts`): MPI joins their ranks, without a launcher of MPI.
 *
 * @module
 */
import * as fs from "node:fs";
import { tmpdir } from "node:os";
import { type TemporaryDirectory, temporaryDirectory } from "../../tests/support/temporary.ts";
import { keepRanks } from "../../tests/train/kept_ranks.ts";
import { libraryOf, mpiLaunchers, withoutLaunchers } from "../../tests/support/mpi_world.ts";
import { type Ended, flagsIn, losses, metricLines, type Running, startRun } from "../../tests/train/runs.ts";
import { type Hosts, hostsObstacle, makeHosts, onHost, processesOn } from "../clusters/hosts.ts";
import { signal } from "../faults/members.ts";
import { ByHand, differences, worldsText } from "./by_hand.ts";
import { randomNumbers, type Seconds, secondsOf, sleep } from "./moments.ts";
import { ONE_STREAM, Story, type World } from "./story.ts";

/** What was seen. */
export interface HostKillsReport {
  /** Ranks and hosts that were killed. */
  readonly kills: { readonly ranks: number; readonly hosts: number };
  readonly steps: number;
  /** Starts of ranks. */
  readonly starts: number;
  /** The numbers of ranks by which the run is resumed by hand, each with its last step. */
  readonly worlds: string;
  /** From a kill to the next step's line, where no other kill came between. */
  readonly restart_seconds: Seconds;
  /** Largest differences of losses to those on three hosts without kills: on the first steps with fewer hosts, and of all steps. */
  readonly loss_difference: { readonly fewer_hosts: number; readonly all: number };
  /** The library of MPI. */
  readonly mpi: string;
  /** What is wrong. */
  readonly wrong: readonly string[];
}

const HOSTS = 3;
const STEPS = 500;
/** Samples of a step, and the micro-batches of a rank on each number of hosts. */
const BATCH = 12;
const MICRO_BATCHES: Readonly<Record<number, number>> = { 3: 1, 2: 2, 1: 3 };
const PORT = 29_500;
/** Largest difference of losses on fewer hosts, which add in another order. */
const LOSS_LIMIT = 1e-5;

/** A third of the kills comes within this time after the one before, whatever the ranks do then. */
const ANY_MS = 3000;
/** A host comes back within this time. */
const AWAY_MS = 8000;
const RETRY_MS = 20;
/** Time in which launchers end once the first has. */
const END_MS = 10_000;
/** Longest time between two steps. */
const STUCK_MS = 120_000;

/** Reason why this machine cannot do it; undefined if it can. */
export function hostKillsObstacle(): string | undefined {
  return hostsObstacle() ??
    (withoutLaunchers(mpiLaunchers()).length === 0
      ? "needs MPICH or Intel MPI, in PATH or named by MPI_LAUNCHERS"
      : undefined);
}

/** Kills ranks and hosts of a run, and compares it with the same steps by hand. */
export async function killHosts(kills: number, seed: number, runtime: "bun" | "deno"): Promise<HostKillsReport> {
  const [mpi] = withoutLaunchers(mpiLaunchers());
  if (mpi === undefined) throw new Error(hostKillsObstacle());
  using folder = temporaryDirectory();
  using hosts = makeHosts(HOSTS);
  const random = randomNumbers(seed);
  const flags = flagsIn(folder, "--global-batch", String(BATCH), "--schedule", "constant");
  const place = { hosts, flags, runtime, kills, mpi: libraryOf(mpi) };
  const run = new HostsRun(place);
  const moments = Array.from({ length: kills }, () => 1 + Math.floor(random() * (STEPS - 10))).sort((a, b) => a - b);
  const restarts: number[] = [];
  let killedAt = NaN;
  run.story.onStep = () => {
    if (!Number.isNaN(killedAt) && run.goesOn) restarts.push((performance.now() - killedAt) / 1000);
    if (run.goesOn) killedAt = NaN;
  };
  for (const moment of moments) {
    const isAnyTime = random() < 1 / 3;
    if (!isAnyTime && !await run.until(moment)) break;
    await sleep(random() * (isAnyTime ? ANY_MS : 100));
    const [which, isHost, awayMs] = [random(), random() < 1 / 2, random() * AWAY_MS];
    while (!run.isOver && !run.kill(which, isHost, awayMs)) await sleep(RETRY_MS); // between two starts there is no rank
    killedAt = performance.now();
  }
  const ends = await run.end();
  const wrong = ends.flatMap(({ code, stdout }) => code === 0 ? [] : [`ended with ${code}:\n${stdout.slice(-4000)}`]);
  for (let host = 1; host <= HOSTS; host++) {
    const left = processesOn(host);
    if (left.length > 0) wrong.push(`processes of host ${host} live on: ${left.join(", ")}`);
  }
  const steps = run.story.lastStep === 0 ? 0 : metricLines(folder).length;
  const worlds = run.story.worlds(steps);
  let difference = { fewer_hosts: NaN, all: NaN };
  if (wrong.length === 0) {
    using ranks = keepRanks(runtime);
    const byHand = new ByHand(ranks, flags, MICRO_BATCHES);
    const failed = await byHand.take([{ ranks: HOSTS, last: STEPS }], folder.file("whole")) ??
      await byHand.take(worlds, folder.file("hand"));
    wrong.push(...failed ?? differences(folder, "hand"));
    if (failed === undefined) difference = lossDifference(folder, worlds);
    if (difference.fewer_hosts > LOSS_LIMIT) wrong.push(`losses on fewer hosts differ by ${difference.fewer_hosts}`);
  }
  return {
    kills: run.killed,
    steps,
    starts: run.story.starts,
    worlds: worldsText(worlds),
    restart_seconds: secondsOf(restarts),
    loss_difference: difference,
    mpi: mpi.name,
    wrong,
  };
}

/** See {@link HostKillsReport.loss_difference}. Later steps begin from weights that differ already. */
function lossDifference(folder: TemporaryDirectory, worlds: readonly World[]): HostKillsReport["loss_difference"] {
  const [own, expected] = [losses(folder), losses(folder, "whole")];
  const largest = (from: number, to: number): number => {
    const steps = [...own.keys()].filter((step) => step > from && step <= to);
    return Math.max(...steps.map((step) => Math.abs((own.get(step) ?? NaN) - (expected.get(step) ?? NaN))));
  };
  const first = worlds.findIndex(({ ranks }) => ranks < HOSTS);
  const back = worlds.findIndex(({ ranks }, i) => i > first && ranks === HOSTS);
  const fewer = first < 0 ? 0 : largest(worlds[first - 1]?.last ?? 0, worlds[back - 1]?.last ?? STEPS);
  return { fewer_hosts: fewer, all: largest(0, STEPS) };
}

/** What the launchers of a run are started with. */
interface HostsPlace {
  readonly hosts: Hosts;
  readonly flags: readonly string[];
  readonly runtime: "bun" | "deno";
  readonly kills: number;
  /** File of the library of MPI; undefined if it is found without. */
  readonly mpi: string | undefined;
}

/** The launchers of three hosts. */
class HostsRun {
  readonly story: Story = new Story();
  readonly killed: { ranks: number; hosts: number } = { ranks: 0, hosts: 0 };
  /** True once launchers have gone on after the last kill. */
  goesOn = false;
  readonly #place: HostsPlace;
  /** The launchers that were not killed, by host. */
  readonly #up = new Map<number, Running>();
  /** The hosts that are about to come back. */
  readonly #back = new Set<ReturnType<typeof setTimeout>>();
  /** True once a launcher has ended by itself. */
  isOver = false;

  constructor(place: HostsPlace) {
    this.#place = place;
    this.story.onGoOn = () => this.goesOn = true;
    for (let host = 1; host <= HOSTS; host++) this.#start(host);
  }

  /** Waits for a step. @returns false if the run ended before */
  async until(step: number): Promise<boolean> {
    while (this.story.lastStep < step && !this.isOver) {
      if (performance.now() > this.story.steppedAt + STUCK_MS) throw new Error(`no step came within ${STUCK_MS} ms`);
      await sleep(2);
    }
    return !this.isOver;
  }

  /**
   * Kills a rank, or a host that comes back later. The last host that is there loses no more than its rank.
   *
   * @param which a number from 0 to 1 that chooses the host
   * @returns false if there was nothing to kill
   */
  kill(which: number, isHost: boolean, awayMs: number): boolean {
    const up = [...this.#up.keys()].sort();
    const host = up[Math.floor(which * up.length)];
    if (host === undefined || this.isOver) return false;
    this.goesOn = false;
    if (!isHost || up.length === 1) {
      const isKilled = processesOn(host).filter(isRank).some((pid) => signal(pid, "SIGKILL"));
      if (isKilled) this.killed.ranks++;
      return isKilled;
    }
    this.#up.delete(host);
    for (const pid of processesOn(host).toReversed()) signal(pid, "SIGKILL");
    this.killed.hosts++;
    const timer = setTimeout(() => {
      this.#back.delete(timer);
      if (!this.isOver) this.#start(host);
    }, awayMs);
    this.#back.add(timer);
    return true;
  }

  /** Waits for the ends of the launchers that took part in the last start. One that came back later looks for the run, and is killed. */
  async end(): Promise<readonly Ended[]> {
    const up = [...this.#up];
    await Promise.race(up.map(([, { ended }]) => ended));
    for (const timer of this.#back) clearTimeout(timer);
    const ends = await Promise.all([...this.#up].map(async ([host, { ended, output }]) => {
      const end = await Promise.race([ended, sleep(END_MS)]);
      if (end !== undefined || output().includes("going on with")) return await ended;
      for (const pid of processesOn(host).toReversed()) signal(pid, "SIGKILL");
      await ended;
      return undefined;
    }));
    return ends.filter((end) => end !== undefined);
  }

  #start(host: number): void {
    const { hosts: { addresses }, flags, runtime, kills, mpi } = this.#place;
    const endpoints = addresses.slice(0, HOSTS).map((address) => `${address}:${PORT}`).join(",");
    const running = startRun([...flags, "--steps", String(STEPS), "--save-every", "1", "--async-save"], {
      runtime,
      ranks: 1,
      allowAll: true,
      env: { FULLYSHARD_TOKEN: "secret", ...mpi === undefined ? {} : { FULLYSHARD_MPI_LIBRARY: mpi } },
      flags: [
        ...["--nnodes", `1:${HOSTS}`, "--node-rank", String(host - 1), "--rdzv-endpoint", endpoints],
        ...["--max-restarts", String(kills), "--redundancy", "1"],
      ],
      shell: ONE_STREAM,
      // Deno's launcher may not use files in /dev, where hosts have their temporary files.
      elsewhere: (command) => onHost(host, ["env", `TMPDIR=${tmpdir()}`, ...command]),
    });
    this.#up.set(host, running);
    this.story.follow(running);
    void running.ended.then(() => {
      if (this.#up.get(host) === running) this.isOver = true;
    });
  }
}

/** True for the process of a rank: its launcher and the shells between have no rank. */
function isRank(pid: number): boolean {
  try {
    return /(?:^|\0)RANK=\d/.test(fs.readFileSync(`/proc/${pid}/environ`, "utf8")) &&
      !/^[^\0]*sh\0/.test(fs.readFileSync(`/proc/${pid}/cmdline`, "utf8"));
  } catch {
    return false;
  }
}
