/**
 * A host's launcher in a run over several hosts: it finds the launcher that leads, starts ranks when that says so, and leads itself when
 * the one before it is lost. Ranks and their state are left to `cli/run.ts`.
 *
 * Note [Who leads]
 * 1. At first the launcher with `--node-rank 0` leads. One that is started later asks at each endpoint for a leader first, so a host that
 *   comes back finds the run, wherever it is led by then.
 * 2. Each start tells all launchers each other's addresses. When the stream to the leader ends, the first of the other launchers of that
 *   start leads, and the others come to it; so no store and no rank 0 must live.
 * 3. If the stream was closed, the leader has ended. If it was silent, the leader may live behind a cut link and go on by itself: then
 *   only more than a half of the hosts of the last start goes on without it.
 *
 * @module
 */
import { spawnSync } from "node:child_process";
import { setTimeout as sleep } from "node:timers/promises";
import type { LaunchOutcome } from "../supervisor.ts";
import { headOf } from "../failures.ts";
import { type HostLimits, Leader, type LeadState, type MemberLink } from "./leader.ts";
import type { Hello, HostStart, LauncherMessage, StartedHost } from "./messages.ts";
import { StateCopies } from "./copies.ts";
import { connectPeer, freePort, type Peer, type PeerEnd, type PeerServer, servePeers } from "./wire.ts";

/** Pause between two attempts to find the leader, and the longest time of them; torchrun's. */
const [RETRY_MS, FIND_MS] = [200, 600_000] as const;
/** Longest time for a new leader to answer. */
const SUCCESSION_MS = 10_000;

/** The end of ranks that were not started. */
const NOT_STARTED: LaunchOutcome = {
  exitCode: 1,
  failures: [],
  stopped: [],
  words: { worldSizes: undefined, out: undefined, hasBegun: false, regroups: false },
};

/** A place at which a launcher may listen. */
export interface Endpoint {
  readonly address: string;
  readonly port: number;
}

/** A launcher's part in a run over hosts. */
export interface MemberOptions {
  readonly limits: HostLimits;
  /** The endpoints of hosts, in the order of their ranks; at least that of the first one. */
  readonly endpoints: readonly Endpoint[];
  readonly nodeRank: number;
  readonly numRanks: number;
  readonly token: string;
  /** Id of the run, if this launcher leads first. */
  readonly run: string;
  readonly say: (text: string) => void;
  /** Starts ranks, and waits for their end. @param stop asks them to end @param onKept takes each step whose state is kept */
  readonly start: (
    start: HostStart,
    stop: AbortSignal,
    onKept: (step: number) => void,
  ) => Promise<LaunchOutcome>;
  /** Aborted by a user's signal, which running ranks get by themselves. */
  readonly asked: AbortSignal;
  /** The folder in memory, with the state of the host's ranks. */
  readonly memory: string;
  /** Asks ranks to leave at a step's border, or takes that back. */
  readonly regroup: (isAsked: boolean) => void;
}

/**
 * Takes part in a run until it ends.
 *
 * @returns the end of this host's last ranks; with exit code 1 if there were none
 * @throws {Error} if the launcher cannot listen
 */
export async function superviseHosts(options: MemberOptions): Promise<LaunchOutcome> {
  const member = new HostMember(options);
  try {
    return await member.run();
  } finally {
    member.close();
  }
}

class HostMember {
  readonly #options: MemberOptions;
  readonly #id: string = crypto.randomUUID();
  readonly #machine: string = machineName();
  readonly #over: PromiseWithResolvers<LaunchOutcome> = Promise.withResolvers();
  #server: PeerServer | undefined;
  #leader: Leader | undefined;
  /** The stream to the leader; undefined while this launcher leads, or looks for it. */
  #peer: Peer | undefined;
  #start: HostStart | undefined;
  #stop: AbortController | undefined;
  #running: Promise<void> | undefined;
  /** True while ranks run. */
  #isRunning = false;
  #outcome: LaunchOutcome | undefined;
  readonly #copies: StateCopies;
  #goesOn = false;
  #worldSizes: readonly number[] | undefined;
  #isOver = false;

  constructor(options: MemberOptions) {
    this.#options = options;
    this.#copies = new StateCopies(options.memory, options.token, this.#id);
  }

  async run(): Promise<LaunchOutcome> {
    const { endpoints, nodeRank, token } = this.#options;
    const own = endpoints[nodeRank];
    this.#server = await servePeers(own?.port ?? 0, token, (peer) => this.#serve(peer));
    const { asked } = this.#options;
    asked.addEventListener("abort", () => this.#isRunning || this.#end("ended by a signal, while no rank ran"), {
      once: true,
    });
    void this.#find();
    return await this.#over.promise;
  }

  close(): void {
    this.#isOver = true;
    this.#leader?.close();
    this.#peer?.close();
    this.#server?.[Symbol.dispose]();
  }

  /** Looks for a leader at the endpoints; the first launcher leads where there is none. */
  async #find(): Promise<void> {
    const { endpoints, nodeRank, run, say } = this.#options;
    const end = performance.now() + FIND_MS;
    for (let attempt = 0; !this.#isOver; attempt++) {
      let isRunLed = false;
      for (const [index, { address, port }] of endpoints.entries()) {
        const answer = index === nodeRank ? "none" : await this.#come(address, port);
        if (answer === "joined") return;
        isRunLed ||= answer === "in a run";
      }
      // Where others are in a run, one of them leads, or is about to.
      if (nodeRank === 0 && !isRunLed) {
        const fresh = { id: this.#id, run, number: -1, restarts: 0, goesOn: false, worldSizes: undefined };
        return await this.#lead({ ...fresh, awaited: [], quorum: 1 }, endpoints[0]?.address ?? "127.0.0.1");
      }
      if (attempt === 0) {
        say(nodeRank === 0 ? "waiting for the launcher that leads" : "waiting for the launcher with --node-rank 0");
      }
      if (performance.now() > end) return this.#end("no launcher that leads was found within 10 minutes");
      await sleep(RETRY_MS);
    }
  }

  /** Joins a launcher if it leads; else tells whether it is in a run. */
  async #come(address: string, port: number): Promise<"joined" | "in a run" | "none"> {
    const peer = await connectPeer(address, port, this.#options.token);
    if (peer === undefined) return "none";
    const answer = Promise.withResolvers<"joined" | "in a run" | "none">();
    peer.onEnd = () => answer.resolve("none");
    peer.onMessage = (message) => {
      if (message.kind === "elsewhere") return answer.resolve(message.isInRun ? "in a run" : "none");
      answer.resolve("joined");
      this.#take(message);
    };
    peer.send(await this.#hello());
    const answered = await answer.promise;
    if (answered !== "joined") {
      peer.close();
      return answered;
    }
    this.#peer = peer;
    peer.onMessage = (message) => this.#take(message);
    peer.onEnd = (how) => void this.#succeed(how);
    return "joined";
  }

  async #lead(state: LeadState, address: string): Promise<void> {
    const leader = new Leader(this.#options.limits, state, this.#options.say);
    this.#leader = leader;
    // A message to this launcher itself comes later, like any other one.
    const link: MemberLink = { address, send: (message) => queueMicrotask(() => this.#take(message)) };
    leader.join(await this.#hello(), link);
  }

  /** A launcher has connected, and asks to join. */
  #serve(peer: Peer): void {
    peer.onMessage = (message) => {
      if (message.kind !== "hello") return this.#copies.serve(peer, message);
      const leader = this.#leader;
      if (leader === undefined) return peer.send({ kind: "elsewhere", isInRun: this.#start !== undefined });
      const { id } = message;
      peer.onMessage = (next) => {
        if (next.kind === "ended") leader.take(id, next);
      };
      peer.onEnd = () => leader.lose(id);
      leader.join(message, peer);
    };
  }

  async #hello(): Promise<Hello> {
    const { nodeRank, numRanks } = this.#options;
    return {
      ...{ kind: "hello", id: this.#id, nodeRank, numRanks, machine: this.#machine },
      port: this.#server?.port ?? 0,
      rankPort: await freePort(),
      number: this.#start?.number ?? -1,
      restarts: this.#start?.restarts ?? 0,
      ...this.#known(),
    };
  }

  #known(): Pick<Hello, "goesOn" | "worldSizes" | "held"> {
    const worldSizes = this.#worldSizes;
    return {
      goesOn: this.#goesOn,
      held: this.#copies.inventory(),
      ...worldSizes === undefined ? {} : { worldSizes: [...worldSizes] },
    };
  }

  #take(message: LauncherMessage): void {
    const { say, regroup } = this.#options;
    if (this.#isOver) return;
    if (message.kind === "welcome" && message.waits !== "") say(message.waits);
    else if (message.kind === "start") this.#running = this.#begin(message);
    else if (message.kind === "stop" && message.number === this.#start?.number) this.#stop?.abort();
    else if (message.kind === "regroup" && message.number === this.#start?.number) regroup(true);
    else if (message.kind === "end") this.#end(this.#leader === undefined ? message.why : "");
  }

  async #begin(start: HostStart): Promise<void> {
    this.#start = start;
    this.#goesOn ||= start.goesOn;
    const stop = new AbortController();
    this.#stop = stop;
    this.#isRunning = true;
    const next = start.hosts[(start.index + 1) % start.hosts.length];
    const outcome = await this.#prepare(start, next?.id === this.#id ? undefined : next)
      ? await this.#options.start(start, stop.signal, (step) => void this.#copies.send(step))
      : NOT_STARTED;
    this.#options.regroup(false);
    [this.#outcome, this.#isRunning] = [outcome, false];
    const { failures: [first], words, signal } = outcome;
    this.#goesOn ||= words.hasBegun;
    this.#worldSizes = words.worldSizes ?? this.#worldSizes;
    const record = first?.record;
    const isFollower = record?.name === "CollectiveError" || record?.name === "RendezvousError";
    const ended: LauncherMessage = {
      ...{ kind: "ended", number: start.number, rankPort: await freePort(), isAsked: signal !== undefined },
      failed: outcome.exitCode !== 0,
      ...first === undefined || record === undefined || isFollower ? {} : { error: headOf(first) },
      isSetting: record?.name === "ConfigError",
      regroups: words.regroups,
      ...this.#known(),
    };
    if (this.#leader !== undefined) this.#leader.take(this.#id, ended);
    else this.#peer?.send(ended);
  }

  /** Takes the state to go on from. @returns false if a host does not give its files */
  async #prepare(start: HostStart, next: StartedHost | undefined): Promise<boolean> {
    try {
      await this.#copies.prepare(start.number, start.from, next);
      return true;
    } catch (error) {
      this.#options.say(`cannot take the state in memory: ${error instanceof Error ? error.message : String(error)}`);
      return false;
    }
  }

  /** The leader is lost: this launcher leads, or comes to the one that does. */
  async #succeed(how: PeerEnd): Promise<void> {
    if (this.#isOver) return;
    this.#peer = undefined;
    this.#stop?.abort();
    await this.#running;
    const last = this.#start;
    if (last === undefined) return await this.#find();
    const { say } = this.#options;
    say(how === "closed" ? "the launcher that led is gone" : "the launcher that led is silent");
    // Launchers lead in the order of the start; those before this one may be lost with the leader, or after it.
    for (const host of last.hosts.filter(({ id }) => id !== last.leader)) {
      if (this.#isOver) return;
      if (host.id === this.#id) return await this.#lead(this.#takenOver(last, how), host.address);
      if (await this.#comeTo(host)) return;
    }
    await this.#find();
  }

  async #comeTo({ address, port }: StartedHost): Promise<boolean> {
    const end = performance.now() + SUCCESSION_MS;
    while (performance.now() < end && !this.#isOver) {
      const began = performance.now();
      if (await this.#come(address, port) === "joined") return true;
      // A port at which nobody listens any more answers at once, and is given up.
      if (performance.now() - began < 20 && performance.now() > end - SUCCESSION_MS + 1000) return false;
      await sleep(RETRY_MS);
    }
    return false;
  }

  #takenOver({ run, number, restarts, hosts, leader }: HostStart, how: PeerEnd): LeadState {
    return {
      ...{ id: this.#id, run, number, restarts, goesOn: this.#goesOn, worldSizes: this.#worldSizes },
      awaited: hosts.map(({ id }) => id).filter((id) => id !== leader),
      quorum: how === "closed" ? 1 : Math.floor(hosts.length / 2) + 1,
    };
  }

  /** The run is over for this host. */
  #end(why: string): void {
    if (this.#isOver) return;
    this.#isOver = true;
    if (why !== "") this.#options.say(why);
    this.#stop?.abort();
    void (this.#running ?? Promise.resolve()).then(() => this.#over.resolve(this.#outcome ?? NOT_STARTED));
  }
}

/**
 * The name of the memory that ranks of this host can share: of the machine's start, and of its file system of shared memory, which
 * containers and network namespaces may have for themselves. Empty where no shell tells.
 */
function machineName(): string {
  const script = 'read -r boot < /proc/sys/kernel/random/boot_id && echo "$boot $(stat -c %d /dev/shm)"';
  const { stdout, status } = spawnSync("/bin/sh", ["-c", script], {
    encoding: "utf8",
    stdio: ["ignore", "pipe", "ignore"],
  });
  return status === 0 ? stdout.trim() : "";
}
