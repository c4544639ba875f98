/**
 * Decides for all hosts of a run when ranks start, on which hosts, and when the run ends. One launcher leads at a time; it is a member
 * like the others, and when it is lost another one leads.
 *
 * @module
 */
import { countOf } from "../../words.ts";
import type { Hello, HostEnd, HostStart, HostState, LauncherMessage, StartState } from "./messages.ts";

/** Time for further hosts once there are enough, at the first start; torchrun's last call. */
const LAST_CALL_MS = 30_000;
/** The default of {@link HostLimits.gatherMs}. */
const GATHER_MS = 5000;
/** Longest wait for enough hosts; torchrun's. */
const JOIN_MS = 600_000;

/** The limits of a run over hosts. */
export interface HostLimits {
  readonly fewestHosts: number;
  readonly mostHosts: number;
  readonly maxRestarts: number;
  /** Time for the other hosts to come when a launcher has begun to lead, as the former leader is lost. @default 5000 */
  readonly gatherMs?: number;
}

/** A member's stream to its leader. */
export interface MemberLink {
  /** Address by which other hosts reach the member. */
  readonly address: string;
  send(message: LauncherMessage): void;
}

interface Member {
  readonly hello: Hello;
  readonly link: MemberLink;
  rankPort: number;
  held: readonly HostState[];
}

/** The state that a new leader takes over. */
export interface LeadState {
  /** Id of the launcher that leads. */
  readonly id: string;
  readonly run: string;
  /** Number of the last start; -1 for none. */
  readonly number: number;
  readonly restarts: number;
  readonly goesOn: boolean;
  readonly worldSizes: readonly number[] | undefined;
  /** Launchers that are to come before ranks start again; empty at first. */
  readonly awaited: readonly string[];
  /** The fewest of them that must come, this one included: more than a half, if the lost leader may live. */
  readonly quorum: number;
}

/** Leads a run. */
export class Leader {
  readonly #limits: HostLimits;
  readonly #say: (text: string) => void;
  readonly #members = new Map<string, Member>();
  /** The hosts of the present start that are lost, by `--node-rank`. */
  readonly #lost: number[] = [];
  readonly #id: string;
  readonly #run: string;
  /** The present start: its hosts, and the ends that they have told. */
  #current: { readonly ids: readonly string[]; readonly ends: Map<string, HostEnd>; isAsked: boolean } | undefined;
  #number: number;
  #restarts: number;
  #goesOn: boolean;
  #worldSizes: readonly number[] | undefined;
  #awaited: readonly string[];
  readonly #quorum: number;
  #lastError: string | undefined;
  /** The time at which enough hosts were there first. */
  #enoughAt: number | undefined;
  /** Since when ranks wait to be started. */
  #since: number = performance.now();
  #timer: ReturnType<typeof setTimeout> | undefined;
  #isOver = false;
  /** True once ranks have ended for a reason after which no further host is waited for. */
  #hurries: boolean;
  #why = "";

  constructor(limits: HostLimits, state: LeadState, say: (text: string) => void) {
    this.#limits = limits;
    this.#say = say;
    this.#id = state.id;
    this.#run = state.run;
    this.#number = state.number;
    this.#restarts = state.restarts;
    this.#goesOn = state.goesOn;
    this.#worldSizes = state.worldSizes;
    this.#awaited = state.awaited;
    this.#quorum = state.quorum;
    this.#hurries = state.awaited.length > 0;
    if (this.#hurries) this.#why = "as the host that led is lost";
  }

  /** A launcher comes, or comes again. */
  join(hello: Hello, link: MemberLink): void {
    if (this.#isOver) return link.send({ kind: "end", why: "the run has ended" });
    const ranks = [...this.#members.values()][0]?.hello.numRanks ?? hello.numRanks;
    if (hello.numRanks !== ranks) {
      const why = `this host has ${countOf(hello.numRanks, "rank")}, others have ${ranks}: give each as many`;
      return link.send({ kind: "end", why });
    }
    this.#members.set(hello.id, { hello, link, rankPort: hello.rankPort, held: hello.held });
    this.#goesOn ||= hello.goesOn;
    this.#worldSizes ??= hello.worldSizes;
    this.#restarts = Math.max(this.#restarts, hello.restarts);
    this.#number = Math.max(this.#number, hello.number);
    const lacking = this.#limits.fewestHosts - this.#members.size;
    link.send({ kind: "welcome", waits: lacking > 0 ? `waiting for ${countOf(lacking, "more host")}` : "" });
    this.#decide();
  }

  /** A launcher is gone. */
  lose(id: string): void {
    const member = this.#members.get(id);
    if (member === undefined || this.#isOver) return;
    this.#members.delete(id);
    this.#awaited = this.#awaited.filter((other) => other !== id);
    if (this.#current?.ids.includes(id) === true) {
      this.#lost.push(member.hello.nodeRank);
      this.#stopOthers();
    }
    this.#decide();
  }

  /** A host's ranks have ended. */
  take(id: string, end: HostEnd): void {
    const [member, current] = [this.#members.get(id), this.#current];
    if (member === undefined || current === undefined || end.number !== this.#number) return;
    [member.rankPort, member.held] = [end.rankPort, end.held];
    current.ends.set(id, end);
    this.#goesOn ||= end.goesOn;
    this.#worldSizes = end.worldSizes ?? this.#worldSizes;
    if (end.failed) this.#stopOthers();
    this.#decide();
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#isOver = true;
  }

  #stopOthers(): void {
    for (const id of this.#current?.ids ?? []) {
      if (this.#current?.ends.has(id) === false) {
        this.#members.get(id)?.link.send({ kind: "stop", number: this.#number });
      }
    }
  }

  #decide(): void {
    const { ids, ends } = this.#current ?? {};
    if (ids === undefined || ends === undefined) return this.#startIfEnough();
    const alive = ids.filter((id) => this.#members.has(id));
    if (alive.every((id) => ends.has(id))) return this.#conclude(alive.length < ids.length);
    if (this.#current?.isAsked === false && this.#hostsFor(this.#members.size) > ids.length && ends.size === 0) {
      this.#current.isAsked = true;
      for (const id of alive) this.#members.get(id)?.link.send({ kind: "regroup", number: this.#number });
    }
  }

  /** All hosts of the present start have ended, or are lost. */
  #conclude(isLost: boolean): void {
    const ends = [...this.#current?.ends.values() ?? []];
    const failed = ends.filter((end) => end.failed);
    if (ends.some(({ isAsked }) => isAsked)) return this.#end("a signal has ended the run");
    if (ends.some(({ isSetting }) => isSetting)) return this.#end("a wrong setting has ended the run");
    if (!isLost && failed.length > 0) {
      const error = failed.map((end) => end.error).find((text) => text !== undefined);
      if (this.#restarts >= this.#limits.maxRestarts) {
        return this.#end(
          `not restarted: --max-restarts ${this.#limits.maxRestarts} is used up`,
        );
      }
      if (error !== undefined && error === this.#lastError) {
        return this.#end("not restarted: the same error came twice, and would come again");
      }
      this.#lastError = error;
      this.#restarts++;
      this.#why = `restart ${this.#restarts} of ${this.#limits.maxRestarts}`;
    } else if (isLost) this.#why = `as ${hostList(this.#lost.splice(0))} lost`;
    else if (ends.some(({ regroups }) => regroups)) this.#why = "as hosts come in";
    else return this.#end("");
    this.#current = undefined;
    this.#since = performance.now();
    this.#hurries = true;
    this.#startIfEnough();
  }

  /** The number of hosts to start on, of those that are there; 0 if they are too few. */
  #hostsFor(there: number): number {
    const ranks = [...this.#members.values()][0]?.hello.numRanks ?? NaN;
    for (let hosts = Math.min(there, this.#limits.mostHosts); hosts >= this.#limits.fewestHosts; hosts--) {
      if (this.#worldSizes === undefined || this.#worldSizes.includes(hosts * ranks)) return hosts;
    }
    return 0;
  }

  #startIfEnough(): void {
    clearTimeout(this.#timer);
    if (this.#isOver) return;
    const now = performance.now();
    const again = (ms: number): void => void (this.#timer = setTimeout(() => this.#startIfEnough(), Math.max(1, ms)));
    const hosts = this.#hostsFor(this.#members.size);
    const lacksOthers = this.#awaited.some((id) => !this.#members.has(id));
    const gatherUntil = this.#since + (this.#limits.gatherMs ?? GATHER_MS);
    if (lacksOthers && now < gatherUntil) return again(gatherUntil - now);
    if (this.#awaited.length > 0 && this.#members.size < this.#quorum) {
      return this.#end(
        `${
          countOf(this.#members.size, "host")
        } of ${this.#awaited.length} cannot tell whether the others live, as they are silent: ` +
          "stop any ranks that still run there, then start again with '--resume auto'",
      );
    }
    if (hosts === 0) {
      this.#enoughAt = undefined;
      if (now > this.#since + JOIN_MS) return this.#end("not enough hosts came within 10 minutes");
      return again(JOIN_MS + 1);
    }
    this.#enoughAt ??= now;
    const isWhole = this.#members.size >= this.#limits.mostHosts;
    if (!isWhole && !this.#hurries && now < this.#enoughAt + LAST_CALL_MS) {
      return again(this.#enoughAt + LAST_CALL_MS - now);
    }
    this.#start(hosts);
  }

  #start(numHosts: number): void {
    const chosen = [...this.#members.values()].sort((a, b) => a.hello.nodeRank - b.hello.nodeRank).slice(0, numHosts);
    const [first] = chosen;
    if (first === undefined) return;
    this.#number++;
    this.#awaited = [];
    this.#current = { ids: chosen.map(({ hello }) => hello.id), ends: new Map(), isAsked: false };
    const common: Omit<HostStart, "index"> = {
      kind: "start",
      number: this.#number,
      restarts: this.#restarts,
      goesOn: this.#goesOn,
      run: this.#run,
      leader: this.#id,
      hosts: chosen.map(({ hello: { id, port }, link: { address } }) => ({ id, address, port })),
      masterAddr: first.link.address,
      masterPort: first.rankPort,
      isOneMachine: chosen.every(({ hello }) => hello.machine === first.hello.machine && hello.machine !== ""),
      from: stateOf([...this.#members.values()]),
      why: this.#why,
    };
    for (const [index, { link }] of chosen.entries()) link.send({ ...common, index });
  }

  #end(why: string): void {
    this.close();
    if (why !== "") this.#say(why);
    for (const { link } of this.#members.values()) link.send({ kind: "end", why });
  }
}

/** The newest state whose files the hosts have together, each file from one of them. */
function stateOf(members: readonly Member[]): StartState | undefined {
  const steps = new Set(members.flatMap(({ held }) => held.map(({ step }) => step)));
  for (const step of [...steps].sort((a, b) => b - a)) {
    const own = members.map((member) => ({ member, state: member.held.find((state) => state.step === step) }));
    const needs = own.flatMap(({ state }) => state?.needs ?? []);
    const taken = new Set<string>();
    const sources = own.flatMap(({ member: { hello, link }, state }) => {
      const files = state?.holds.filter((name) => !taken.has(name)) ?? [];
      for (const name of files) taken.add(name);
      return files.length === 0 ? [] : [{ address: link.address, port: hello.port, files }];
    });
    if (needs.length > 0 && needs.every((name) => taken.has(name))) return { step, sources };
  }
  return undefined;
}

/** `host 1 is`, `hosts 0, 2 are`. */
function hostList(nodeRanks: readonly number[]): string {
  const names = nodeRanks.toSorted((a, b) => a - b).join(", ");
  return nodeRanks.length === 1 ? `host ${names} is` : `hosts ${names} are`;
}
