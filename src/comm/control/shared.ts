/**
 * A control plane over memory that all ranks of a group share, for processes and Workers alike. Each rank owns a block:
 * counters, a bell that others sleep on, its log of calls, its mailbox. Where blocks come from, its two kinds know.
 *
 * Note [Bell]: whoever changes something that others wait for looks whether anybody sleeps on its bell, and rings only
 * then; whoever wants to sleep counts itself in first, reads the bell, looks once more, and sleeps only while the bell
 * is unchanged.
 *
 * Note [Who is past]: a call needs something of every rank, and a rank gives it before it announces its next call. So a
 * rank that is past this call without having given what is waited for has made another call, however long ago that was.
 *
 * @module
 */
import { at } from "../../at.ts";
import { CollectiveError } from "../../errors.ts";
import { type Call, describeCall, isCollective } from "../call.ts";
import type { ControlOptions, ControlPlane } from "../control_plane.ts";
import type { AbortArea } from "./abort.ts";
import { CALL_LOG_WORDS, CallLog } from "./call_log.ts";
import { Mailbox, MAILBOX_BYTES } from "./mailbox.ts";

// Words of a rank's block. The first line is written by its owner alone, the second by who sleeps.
const STATE = 0;
const BELL = 32;
const SLEEPERS = 33;
const LOG = 64;
const MAILBOX: number = LOG + CALL_LOG_WORDS;
/** Bytes of one rank's block. */
export const BLOCK_BYTES: number = MAILBOX * 4 + MAILBOX_BYTES;

const RUNNING = 0;
const WAITING = 1;
const LEFT = 2;

const PROBE_MS = 250;
const SLEEP_MS = 50;

/** What the groups of one rank have in common. */
export interface World {
  readonly abort: AbortArea;
  /** Whether a rank has died; one that left in order has not. */
  isDead(worldRank: number): boolean;
  readonly report: (text: string) => void;
  readonly reportMs: number;
  /** How often a wait looks before it sleeps. */
  readonly spins: number;
}

/** The options of a world, with their defaults. */
export function worldTimes(
  options: ControlOptions,
  worldSize: number,
  cores: number,
): Omit<World, "abort" | "isDead"> & { readonly timeoutSeconds: number } {
  const { timeoutSeconds = 600, report = (): void => {}, reportSeconds = 10 } = options;
  // Where ranks share cores, the awaited one needs this core.
  return { timeoutSeconds, report, reportMs: reportSeconds * 1000, spins: worldSize <= cores ? 4000 : 40 };
}

/** Who is in a group. */
export interface Place {
  readonly name: string;
  readonly rank: number;
  /** Rank in the world, of each rank. */
  readonly worldRanks: readonly number[];
}

/** The blocks of a group. */
export interface BlockMemory {
  /** {@link BLOCK_BYTES} shared bytes of each rank, zero at first. */
  readonly blocks: readonly Uint8Array[];
  /** Sleeps while a word of a rank's block holds `expected`, at most `timeoutMs`; may wake for no reason. */
  sleep(rank: number, word: number, expected: number, timeoutMs: number): void;
  /** Wakes all that sleep on that word. */
  wake(rank: number, word: number): void;
}

/** The ranks of a group, over their blocks. */
export abstract class SharedControlPlane implements ControlPlane {
  readonly name: string;
  readonly rank: number;
  readonly size: number;
  readonly worldRanks: readonly number[];
  timeoutSeconds: number;
  readonly #world: World;
  readonly #memory: BlockMemory;
  readonly #blocks: readonly Int32Array[];
  readonly #own: Int32Array;
  readonly #log: CallLog;
  readonly #mailbox: Mailbox;
  #call: Call | undefined;

  /** @param timeoutSeconds seconds after which a wait for a live rank fails */
  constructor(place: Place, memory: BlockMemory, world: World, timeoutSeconds: number) {
    this.name = place.name;
    this.rank = place.rank;
    this.size = place.worldRanks.length;
    this.worldRanks = place.worldRanks;
    this.timeoutSeconds = timeoutSeconds;
    this.#world = world;
    this.#memory = memory;
    const { blocks } = memory;
    this.#blocks = blocks.map(({ buffer, byteOffset }) => new Int32Array(buffer, byteOffset, MAILBOX));
    this.#own = at(this.#blocks, place.rank, "block of rank");
    this.#log = new CallLog(this.#blocks.map((words) => words.subarray(LOG)), place.rank);
    this.#mailbox = new Mailbox(this, blocks.map((block) => block.subarray(MAILBOX * 4, BLOCK_BYTES)));
  }

  abstract split(ranks: readonly number[], name: string): ControlPlane;

  announce(call: Call): void {
    this.#call = call;
    this.#throwIfAborted();
    this.#log.write(call);
    if (!isCollective(call)) return;
    this.notify();
    this.#compareAll();
  }

  exchange(bytes: Uint8Array): readonly Uint8Array[] {
    return this.#mailbox.exchange(bytes);
  }

  notify(): void {
    if (Atomics.load(this.#own, SLEEPERS) > 0) this.#ring(this.rank);
  }

  wait(ready: () => boolean, stage: string, rank?: number): void {
    for (let i = 0; i < this.#world.spins; i++) if (ready()) return;
    Atomics.store(this.#own, STATE, WAITING);
    try {
      this.#sleepUntil(ready, stage, rank);
    } finally {
      Atomics.store(this.#own, STATE, RUNNING);
    }
  }

  failure(detail: string, stoppedBy?: number): CollectiveError {
    const facts = {
      group: this.name,
      rank: this.#worldRank(this.rank),
      op: this.#call === undefined ? "no call yet" : describeCall(this.#call),
      sequence: this.#call?.sequence ?? 0,
    };
    return new CollectiveError(stoppedBy === undefined ? facts : { ...facts, stoppedBy }, detail);
  }

  abort(reason: string): void {
    this.#world.abort.set(this.#worldRank(this.rank), reason);
    for (let rank = 0; rank < this.size; rank++) this.#ring(rank);
  }

  dispose(): void {
    Atomics.store(this.#own, STATE, LEFT);
    this.#ring(this.rank);
  }

  #ring(rank: number): void {
    Atomics.add(this.#block(rank), BELL, 1);
    this.#memory.wake(rank, BELL);
  }

  #sleepUntil(ready: () => boolean, stage: string, rank: number | undefined): void {
    const { reportMs, report } = this.#world;
    // Without an awaited rank this one sleeps on its own bell, which rings for an abort only, and looks more often.
    const bellOf = rank ?? this.rank;
    const words = this.#block(bellOf);
    const sleepMs = rank === undefined ? 1 : SLEEP_MS;
    const start = performance.now();
    let probeAt = start + PROBE_MS;
    let reportAt = start + reportMs;
    for (;;) {
      this.#throwIfAborted();
      Atomics.add(words, SLEEPERS, 1);
      const bell = Atomics.load(words, BELL);
      if (!ready()) this.#memory.sleep(bellOf, BELL, bell, sleepMs);
      Atomics.sub(words, SLEEPERS, 1);
      if (ready()) return;
      if (rank !== undefined) {
        this.#compare(rank);
        if (this.#isPast(rank) && !ready()) this.#stopAsPast(rank);
      }
      const now = performance.now();
      if (now >= probeAt || Atomics.load(words, STATE) === LEFT) {
        probeAt = now + PROBE_MS;
        this.#compareAll();
        this.#stopIfGone(ready, stage, rank);
      }
      if (now >= reportAt) {
        reportAt = Infinity;
        report(this.#late(stage, rank, now - start));
      }
      if (now - start > this.timeoutSeconds * 1000) {
        const seen = this.#peers().map((peer) =>
          `rank ${this.#worldRank(peer)}${peer === rank ? " (awaited)" : ""} ${this.#lastSeen(peer)}`
        );
        this.#stop(`waited ${this.timeoutSeconds} s (${stage}); ${seen.join("; ")}`);
      }
    }
  }

  #throwIfAborted(): void {
    const { cause } = this.#world.abort;
    if (cause === undefined) return;
    if (cause.rank < 0) throw this.failure(cause.reason);
    const stoppedBy = cause.rank === this.#worldRank(this.rank) ? undefined : cause.rank;
    throw this.failure(`rank ${cause.rank} stopped all ranks: ${cause.reason}`, stoppedBy);
  }

  #stop(detail: string): never {
    const error = this.failure(detail);
    this.abort(error.message);
    throw error;
  }

  #stopIfGone(ready: () => boolean, stage: string, rank: number | undefined): void {
    for (const peer of rank === undefined ? this.#peers() : [rank]) {
      const worldRank = this.#worldRank(peer);
      const left = Atomics.load(this.#block(peer), STATE) === LEFT;
      const dead = !left && this.#world.isDead(worldRank);
      if (!left && !dead) continue;
      // It may have done its part just before.
      if (ready()) return;
      // A dead rank's own cause, or that of whoever saw it first, comes before ours.
      this.#throwIfAborted();
      const how = dead ? "died (its process or Worker is gone)" : "has left the group";
      this.#stop(`rank ${worldRank} ${how} while it was awaited (${stage}); it ${this.#lastSeen(peer)}`);
    }
  }

  #late(stage: string, rank: number | undefined, ms: number): string {
    const { facts: { op, sequence } } = this.failure("late");
    const whom = rank === undefined ? "another" : `rank ${this.#worldRank(rank)}`;
    const seen = rank === undefined ? "" : `, which is alive and ${this.#lastSeen(rank)}`;
    return `Rank ${this.#worldRank(this.rank)} has waited ${
      (ms / 1000).toFixed(1)
    } s in ${op} (group '${this.name}', ` +
      `call ${sequence}) for ${whom} (${stage})${seen}. Fails at ${this.timeoutSeconds} s`;
  }

  #lastSeen(rank: number): string {
    const sequence = this.#log.newest(rank);
    if (sequence === 0) return "was last seen joining, with no call yet";
    const call = this.#log.readApart(rank, sequence) ?? this.#log.read(rank, sequence);
    const where = Atomics.load(this.#block(rank), STATE) === WAITING ? "in" : "after";
    return `was last seen ${where} call ${sequence}${call === undefined ? "" : `, ${describeCall(call)}`}`;
  }

  #compareAll(): void {
    for (let peer = 0; peer < this.size; peer++) if (peer !== this.rank) this.#compare(peer);
  }

  /** Stops the world if a peer is known to have made other calls. See Note [Rolling hash] in `call_log.ts`. */
  #compare(peer: number): void {
    const difference = this.#log.difference(peer);
    if (difference === undefined) return;
    const { sequence, isFirst } = difference;
    const groups = new Map<string, number[]>();
    for (let rank = 0; rank < this.size; rank++) {
      const call = this.#log.read(rank, sequence);
      const isAbsent = this.#log.newest(rank) < sequence;
      const text = call !== undefined ? `calls ${describeCall(call)}` : isAbsent ? "has not come so far" : "is further";
      groups.set(text, [...groups.get(text) ?? [], this.#worldRank(rank)]);
    }
    const list = [...groups].map(([text, ranks]) => `rank ${ranks.join(", ")} ${text}`).join("; ");
    const isSameText = [...groups.keys()].filter((text) => text.startsWith("calls")).length === 1;
    const what = !isFirst
      ? `ranks made different calls at or before call ${sequence}, the oldest that they still keep`
      : isSameText
      ? "ranks make the same call with different runs, root, operation or factor"
      : "ranks make different calls";
    this.#stop(`${what}: ${list}`);
  }

  /** See Note [Who is past]. */
  #isPast(rank: number): boolean {
    if (this.#call === undefined || !isCollective(this.#call)) return false;
    return this.#log.newest(rank) > this.#log.newest(this.rank);
  }

  #stopAsPast(rank: number): never {
    const own = this.#call === undefined ? "" : describeCall(this.#call);
    this.#stop(
      `ranks made different calls at or before call ${this.#call?.sequence}: rank ${
        this.#worldRank(rank)
      } is past ${own}, ` +
        `but has not taken part in it; it ${this.#lastSeen(rank)}`,
    );
  }

  #peers(): number[] {
    return this.worldRanks.map((_, rank) => rank).filter((rank) => rank !== this.rank);
  }

  #block(rank: number): Int32Array {
    return at(this.#blocks, rank, "block of rank");
  }

  #worldRank(rank: number): number {
    return at(this.worldRanks, rank, "world rank of rank");
  }
}
