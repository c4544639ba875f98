/**
 * A control plane over memory that all ranks of a group share, for processes and Workers alike. Each rank owns a block:
 * counters, a bell that other ranks sleep on, its log of calls, its mailbox. The two subclasses provide the blocks.
 *
 * Note [Bell]: a rank sleeps on the bell of the rank that it waits for, and no change is missed:
 * - The sleeper adds 1 to the awaited rank's SLEEPERS, reads its BELL, checks `ready()` again, and sleeps only while BELL
 *   has that value.
 * - The awaited rank first changes its block; then, if its SLEEPERS is not 0, it raises BELL and wakes the sleepers.
 *
 * Note [Skipped calls]: a rank contributes to a call before it announces its next call. So if the awaited rank has announced
 * a later call, and its contribution to this call is still missing, it made a different call instead of this one.
 *
 * Note [Abort]: any rank stops all ranks of the world by the shared words of `AbortArea`, which keep the first reason. It then
 * rings the bells of this group's ranks, so that sleepers wake. Every turn of a wait checks the words, at the latest after
 * {@link SLEEP_MS}, and every `announce` does: each rank throws the reason from the call that it waits in, or from its next call.
 *
 * @module
 */
import { byteLengthOf, type Call, describeCall, describeInStep, isCollective } from "../call.ts";
import { type ControlOptions, ControlPlane, type Place } from "../control_plane.ts";
import type { FlightRecord, RecordedCall, RecordedRank } from "../flight_record.ts";
import { type AbortArea, type Absence, endInShort } from "./abort.ts";
import type { BlockMemory } from "./block_memory.ts";
import { CALL_LOG_HEAD_WORDS, CALL_LOG_WORDS, CallLog, P2P_ENTRY } from "./call_log.ts";
import { lazily } from "../lazily.ts";
import { MAILBOX_BYTES, openMailboxes } from "./mailbox.ts";
import type { WaitBoard } from "./wait_board.ts";

// int32 indices in a rank's block. Words 0-31: written by the owner only. BELL (futex word): incremented by the owner and by an
// aborting rank. SLEEPERS: changed by waiters.
const STATE = 0;
const BELL = 32;
const SLEEPERS = 33;
const LOG = 64;
/** The words of a block that other ranks write: BELL and SLEEPERS. */
export const SLEEP_WORDS: { readonly begin: number; readonly end: number; readonly sleepers: number } = {
  begin: BELL,
  end: LOG,
  sleepers: SLEEPERS,
};
const MAILBOX: number = LOG + CALL_LOG_WORDS;
/** Bytes at the beginning of a block that hold its rank's state and newest call. */
export const BLOCK_HEAD_BYTES: number = (LOG + CALL_LOG_HEAD_WORDS) * 4;
/** Byte offset of the mailbox in a block. */
export const MAILBOX_BEGIN: number = MAILBOX * 4;
export const BLOCK_BYTES: number = MAILBOX * 4 + MAILBOX_BYTES;

const RUNNING = 0;
const WAITING = 1;
const LEFT = 2;

const PROBE_MS = 50;
const SLEEP_MS = 50;

/** Remedy for the most frequent cause of different calls. */
const REMEDY =
  "all ranks of a group must make the same collectives in the same order: look for one inside an 'if' on the rank";

/** The state of one rank that all its groups share. */
export interface World {
  readonly abort: AbortArea;
  /** What is known of a rank's death, in words; undefined for a rank that lives or left in order. */
  deathOf(worldRank: number): string | undefined;
  readonly options: ControlOptions;
  /** Number of checks that a wait makes before it sleeps. */
  readonly spins: number;
  /** Whom ranks wait for; undefined where what a rank does may reach another later than it goes on. */
  readonly waits?: WaitBoard;
}

/**
 * Number of checks before a wait sleeps. With a core for each rank, a rank checks for longer than waking a sleeper takes, because its
 * sleep would make its peers wait and sleep too. If ranks share cores, it checks only for a short time, as the awaited rank needs this
 * core.
 */
export function spinsFor(worldSize: number, cores: number): number {
  return worldSize <= cores ? 100_000 : 40;
}

/** A wait under way. */
interface Wait {
  readonly ready: () => boolean;
  readonly stage: string;
  readonly awaited: number | readonly number[];
  /** True if only awaited ranks can end the wait, and within the present call: their hosts do, not work that they have enqueued. */
  readonly isForHosts: boolean;
  /** True if this wait may succeed although the rank has left. */
  readonly mayHaveLeft: (peer: number) => boolean;
}

/** A control plane whose ranks read each other's blocks. */
export abstract class SharedControlPlane extends ControlPlane {
  protected readonly world: World;
  readonly #memory: BlockMemory;
  readonly #block: (rank: number) => Int32Array;
  readonly #own: Int32Array;
  readonly #peers: readonly number[];
  /** Peers whose blocks show their newest published calls without a request: all peers, or between hosts the neighbours. */
  readonly #followed: readonly number[];
  readonly #log: CallLog;
  readonly exchange: ControlPlane["exchange"];

  constructor(place: Place, memory: BlockMemory, world: World, timeoutSeconds: number = 600) {
    super(place, timeoutSeconds);
    this.world = world;
    this.#memory = memory;
    this.#block = lazily((rank) => {
      const { buffer, byteOffset } = memory.block(rank);
      return new Int32Array(buffer, byteOffset, MAILBOX);
    });
    this.#own = this.#block(place.rank);
    this.#peers = place.worldRanks.map((_, rank) => rank).filter((rank) => rank !== place.rank);
    this.#followed = memory.followed?.ranks ?? this.#peers;
    this.#log = new CallLog(lazily((rank) => this.#block(rank).subarray(LOG)), place.rank);
    const { followed } = memory;
    const exchange = followed === undefined
      ? openMailboxes(this, place.worldRanks.map((_, rank) => memory.block(rank).subarray(MAILBOX_BEGIN, BLOCK_BYTES)))
      : (bytes: Uint8Array): readonly Uint8Array[] => followed.exchange(this, bytes);
    this.exchange = (bytes) => {
      const all = exchange(bytes);
      // Between hosts, a peer's calls may arrive only with the bytes that it exchanges.
      this.compareCalls();
      return all;
    };
  }

  announce(call: Call): void {
    this.call = call;
    this.#throwIfAborted();
    this.#log.write(call);
    if (!isCollective(call)) return;
    if (this.#memory.followed === undefined) this.notify();
    else this.#memory.followed.announced();
    this.compareCalls();
  }

  notify(): void {
    if (Atomics.load(this.#own, SLEEPERS) > 0) this.#ring(this.rank);
  }

  report(text: string): void {
    this.world.options.report?.(text);
  }

  wait(ready: () => boolean, stage: string, awaited?: number | readonly number[]): void {
    const isForHosts = awaited !== undefined;
    this.#wait({ ready, stage, awaited: awaited ?? this.#peers, isForHosts, mayHaveLeft: () => false });
  }

  watch(ready: () => boolean, stage: string): void {
    const { call } = this;
    const mayHaveLeft = (peer: number): boolean => call === undefined || this.#log.newest(peer) >= call.sequence;
    this.#wait({ ready, stage, awaited: this.#peers, isForHosts: false, mayHaveLeft });
  }

  get stopped(): boolean {
    return this.world.abort.cause !== undefined;
  }

  #wait(wait: Wait): void {
    for (let i = 0; i < this.world.spins; i++) if (wait.ready()) return;
    Atomics.store(this.#own, STATE, WAITING);
    try {
      this.#sleepUntil(wait);
    } finally {
      Atomics.store(this.#own, STATE, RUNNING);
      this.world.waits?.end();
    }
  }

  flightRecord(): FlightRecord {
    this.#refresh();
    const ranks = this.worldRanks.map((worldRank, rank): RecordedRank => {
      const state = Atomics.load(this.#block(rank), STATE);
      const isDead = rank !== this.rank && this.world.deathOf(worldRank) !== undefined;
      return {
        rank: worldRank,
        state: state === LEFT ? "left" : isDead ? "dead" : state === WAITING ? "waiting" : "running",
        calls: this.#log.kept(rank).map((call): RecordedCall => {
          const { sequence, kind, unit, phase = null, step } = call;
          return { sequence, kind, unit, phase, step, bytes: byteLengthOf(call) };
        }),
      };
    });
    return { group: this.name, rank: this.worldRank(this.rank), ranks };
  }

  override stop(detail: string, stoppedBy?: number, isLate: boolean = false): never {
    // Several ranks may stop at once: only the first writes a record, which has the calls of all ranks.
    if (this.world.abort.cause !== undefined) {
      this.#reportWait();
      return super.stop(detail, stoppedBy);
    }
    const record = this.flightRecord();
    const error = this.failure(detail, stoppedBy);
    this.#abortAll(error.message, { dead: stoppedBy, isLate });
    try {
      throw error;
    } finally {
      // The other ranks are aborted first, as writing the record may take long.
      this.#reportWait();
      const line = this.world.options.onStop?.(record, detail);
      if (line !== undefined) this.report(line);
    }
  }

  abort(reason: string): void {
    this.#abortAll(reason);
  }

  #abortAll(reason: string, absence?: Absence): void {
    this.world.abort.set(this.worldRank(this.rank), reason, absence);
    for (let rank = 0; rank < this.size; rank++) this.#ring(rank);
  }

  dispose(): void {
    Atomics.store(this.#own, STATE, LEFT);
    this.#ring(this.rank);
    this.#memory.leave();
  }

  #ring(rank: number): void {
    Atomics.add(this.#block(rank), BELL, 1);
    this.#memory.wake(rank, BELL);
  }

  #sleepUntil({ ready, stage, awaited, isForHosts, mayHaveLeft }: Wait): void {
    const { reportSeconds = 10 } = this.world.options;
    const [rank, ranks] = typeof awaited === "number" ? [awaited, [awaited]] : [undefined, awaited];
    // If several ranks are awaited, this rank sleeps on its own bell, which only an abort rings. So it wakes more often to check.
    const bellOf = rank ?? this.rank;
    const words = this.#block(bellOf);
    const start = performance.now();
    let [probeAt, reportAt, lookAt] = [start + PROBE_MS, start + reportSeconds * 1000, start + PROBE_MS];
    const waits = isForHosts ? this.world.waits : undefined;
    for (;;) {
      if (ready()) return;
      // A peer may contribute and then abort after the line above: an abort never undoes what this rank waits for.
      if (this.stopped && ready()) return;
      this.#throwIfAborted();
      Atomics.add(words, SLEEPERS, 1);
      const bell = Atomics.load(words, BELL);
      if (!ready()) this.#memory.sleep(bellOf, BELL, bell, rank === undefined ? 1 : SLEEP_MS);
      Atomics.sub(words, SLEEPERS, 1);
      if (ready()) return;
      if (rank !== undefined) this.#stopIfSkipped(rank, ready);
      const now = performance.now();
      if (now >= probeAt || Atomics.load(words, STATE) === LEFT) {
        probeAt = now + PROBE_MS;
        this.compareCalls();
        for (const peer of ranks) this.#stopIfGone(peer, { ready, stage, mayHaveLeft });
      }
      if (waits !== undefined && now >= lookAt) {
        lookAt = now + SLEEP_MS;
        waits.begin(ranks.map((peer) => this.worldRank(peer)), this.#whereabouts());
        const stuck = waits.look(); // see Note [Ranks that wait for each other]
        if (stuck !== undefined && !ready()) {
          this.stop(`ranks wait for each other, and none can go on: ${stuck}; ${REMEDY}`);
        }
      }
      if (now >= reportAt) {
        reportAt = Infinity;
        this.report(this.#late(stage, this.#behind(rank), now - start));
      }
      if (now - start > this.timeoutSeconds * 1000) this.#expire(stage, this.#behind(rank));
    }
  }

  #throwIfAborted(): void {
    const { cause } = this.world.abort;
    if (cause === undefined) return;
    if (cause.rank < 0) throw this.failure(cause.reason);
    this.#reportWait();
    const stoppedBy = cause.rank === this.worldRank(this.rank) ? undefined : cause.rank;
    throw this.failure(`rank ${cause.rank} stopped all ranks: ${cause.reason}`, stoppedBy);
  }

  #stopIfGone(peer: number, { ready, stage, mayHaveLeft }: Pick<Wait, "ready" | "stage" | "mayHaveLeft">): void {
    const hasLeft = Atomics.load(this.#block(peer), STATE) === LEFT;
    const how = hasLeft ? "has left the group" : this.world.deathOf(this.worldRank(peer));
    if (how === undefined || (hasLeft && mayHaveLeft(peer))) return;
    // The peer may have contributed just before it ended.
    if (ready()) return;
    // If the peer has stopped all with its own cause, or another rank saw it die first, that reason is thrown.
    this.#throwIfAborted();
    this.#refresh();
    const gone = this.worldRank(peer);
    const detail = `rank ${gone} ${how} while this rank waited for ${stage}; last ${this.#seen(peer)}`;
    if (!hasLeft) this.stop(detail, gone);
    // A rank that left because it failed reports the cause itself, so no wait is reported here.
    super.stop(`${detail}; ${REMEDY}`, gone);
  }

  /** The present call, with its group, number, and step where that is known: loops of one's own do not tell it. */
  #whereabouts(): string {
    const [{ facts: { op, sequence } }, { place, call }] = [this.failure(""), this];
    return `${op} (${place}, ${call === undefined || call.step === 0 ? "" : `step ${call.step}, `}call ${sequence})`;
  }

  #expire(stage: string, awaited: readonly number[]): never {
    const seen = this.#peers.map((peer) =>
      `rank ${this.worldRank(peer)}${awaited.includes(peer) ? " (awaited)" : ""} was last ${this.#seen(peer)}`
    );
    this.stop(`waited ${this.timeoutSeconds} s for ${stage}; ${seen.join("; ")}`, undefined, true);
  }

  /** Reports the call that this rank waits in, and the ranks missing from it, if the abort asks for it. */
  #reportWait(): void {
    const { call } = this;
    const absence = call === undefined ? undefined : this.world.abort.unreportedAbsence();
    if (call === undefined || absence === undefined) return;
    // Where the store cannot be asked, the report covers neighbours only.
    const known = this.#refresh() ? this.#peers : this.#followed;
    const missing = known.flatMap((peer) => {
      // Of the ranks that are gone, only this one is gone by itself; the others were ended by the abort.
      const how = this.worldRank(peer) === absence.dead
        ? endInShort(this.world.deathOf(absence.dead))
        : this.#log.difference(peer) !== undefined
        ? "is in a different collective"
        : this.#log.newest(peer) < call.sequence
        ? "has not reached it"
        : undefined;
      return how === undefined ? [] : `rank ${this.worldRank(peer)} ${how} and was last ${this.#seen(peer)}`;
    });
    const whom = missing.length === 0 ? "all ranks of the group have reached it" : missing.join("; ");
    this.report(`Rank ${this.worldRank(this.rank)} waits in ${this.#whereabouts()}: ${whom}`);
  }

  /** The ranks that hold up a wait for `awaited`: that rank, or the ranks for which it waits itself. */
  #behind(awaited: number | undefined): readonly number[] {
    if (awaited === undefined) return [];
    this.#refresh();
    const behind = this.#memory.followed?.behind() ?? [];
    return behind.length === 0 ? [awaited] : behind;
  }

  /** Brings the known blocks of all ranks up to date; false if the store did not answer. */
  #refresh(): boolean {
    return this.#memory.followed?.refresh() ?? true;
  }

  #late(stage: string, awaited: readonly number[], ms: number): string {
    const whom = awaited.length === 0
      ? `others (${stage})`
      : awaited.map((rank) =>
        `rank ${this.worldRank(rank)} (${stage}), which is alive and was last ${this.#seen(rank)}`
      ).join("; ");
    const since = `Rank ${this.worldRank(this.rank)} has waited ${(ms / 1000).toFixed(1)} s in ${this.#whereabouts()}`;
    return `${since} for ${whom}. Fails at ${this.timeoutSeconds} s`;
  }

  /** The rank's newest call, in words. */
  #seen(rank: number): string {
    const sequence = this.#log.newest(rank);
    if (sequence === 0) return "seen joining, with no call yet";
    const call = this.#log.read(rank, sequence, P2P_ENTRY) ?? this.#log.read(rank, sequence);
    const seen = `seen ${Atomics.load(this.#block(rank), STATE) === WAITING ? "in" : "after"} call ${sequence}`;
    return call === undefined ? seen : `${seen}, ${describeInStep(call)}`;
  }

  /** Compares this rank's calls with the known calls of the ranks that it follows. */
  protected compareCalls(): void {
    for (const peer of this.#followed) this.#compare(peer);
  }

  /** Stops the world if a peer is known to have made different calls. See Note [Rolling hash] in `call_log.ts`. */
  #compare(peer: number): void {
    const difference = this.#log.difference(peer);
    if (difference === undefined) return;
    this.#memory.followed?.refresh(() => this.#peers.every((one) => this.#log.newest(one) >= difference.sequence));
    const others = this.#peers.flatMap((other) => this.#log.difference(other) ?? []);
    const { sequence, isFirst } = [difference, ...others].reduce((a, b) => b.sequence < a.sequence ? b : a);
    const texts = Map.groupBy(this.worldRanks, (_, rank) => {
      const call = this.#log.read(rank, sequence);
      if (call !== undefined) return `calls ${describeCall(call)}`;
      return this.#log.newest(rank) < sequence
        ? "has not reached this call"
        : "is past this call, which is no longer in its log";
    });
    const isSameText = [...texts.keys()].filter((text) => text.startsWith("calls")).length === 1;
    const what = !isFirst
      ? `ranks made different calls at or before call ${sequence}, the oldest that they still keep`
      : isSameText
      ? "ranks make the same call with different slices, root, operation or factor"
      : "ranks make different calls";
    const remedy = isFirst && isSameText ? "" : `; ${REMEDY}`;
    this.stop(`${what}: ${[...texts].map(([text, ranks]) => `rank ${ranks.join(", ")} ${text}`).join("; ")}${remedy}`);
  }

  /** Stops the world if the awaited rank made a different call instead of this one. See Note [Skipped calls]. */
  #stopIfSkipped(rank: number, ready: () => boolean): void {
    this.#compare(rank);
    const { call } = this;
    if (call === undefined || !isCollective(call) || this.#log.newest(rank) <= call.sequence || ready()) return;
    const who = `rank ${this.worldRank(rank)} made a later call without taking part in this one, and was last ${
      this.#seen(rank)
    }`;
    this.stop(`ranks made different calls at or before call ${call.sequence}: ${who}; ${REMEDY}`);
  }
}
