/**
 * The shared words of one group, and waiting on them. Each rank owns a block: counters that only it writes, a bell that
 * others sleep on, its log of calls. Counters only rise (modulo 2^32), so a wait is "until that counter reached n".
 *
 * Note [Bell]: whoever raises a counter looks whether anybody sleeps on its bell, and rings only then; whoever wants to
 * sleep counts itself in first, reads the bell, looks at the counter again, and sleeps only while the bell is unchanged.
 *
 * Note [The wait is the watchdog]: a rank blocked here runs no timers and no signal handlers. So each wait itself looks
 * at the abort word at every wake, at the peer's life every {@link PROBE_MS}, reports it late once, and ends at the deadline.
 *
 * @module
 */
import type { DType } from "../../dtype.ts";
import { CollectiveError } from "../../errors.ts";
import type { CollectiveFacts } from "../../errors.ts";
import type { CallKind } from "../transport.ts";
import { CALL_LOG_WORDS, CallLog, CALLS_KEPT } from "./call_log.ts";
import type { AbortArea, Futex, Liveness } from "./world.ts";

/** Windows that a group may have open at once. */
export const MAX_WINDOWS = 1024;

// Words of a rank's block. The first line is written by its owner alone, the second by who sleeps.
const SEQUENCE = 0;
const VERIFIED = 1;
const PHASE = 2;
/** Rounds that this rank has put into its aperture slot. */
export const STAGED = 3;
/** Rounds that this rank has taken out of its peers' slots. */
export const CONSUMED = 4;
const BELL = 32;
const SLEEPERS = 33;
/** First of {@link MAX_WINDOWS} words: the epoch of a window that this rank has published. */
export const PUBLISHED = 64;
/** First of {@link MAX_WINDOWS} words: the epoch of a window that this rank has finished gathering. */
export const GATHERED: number = PUBLISHED + MAX_WINDOWS;
const LOG: number = GATHERED + MAX_WINDOWS;
const BLOCK_WORDS: number = LOG + CALL_LOG_WORDS;

const OUTSIDE = 0;
const INSIDE = 1;
const LEFT = 2;

const PROBE_MS = 250;
const SLEEP_MS = 50;

/** Bytes of shared memory that a group of `size` ranks needs for its words. */
export function controlBytes(size: number): number {
  return size * BLOCK_WORDS * 4;
}

/** What a group's waits need to know. */
export interface ControlOptions {
  /** The group's name. */
  readonly name: string;
  readonly rank: number;
  readonly size: number;
  /** Rank in the world, of each rank. */
  readonly worldRanks: readonly number[];
  /** The group's shared words, zero at first. */
  readonly words: Int32Array;
  /** Sleeping on those words. */
  readonly futex: Futex;
  readonly abort: AbortArea;
  readonly liveness: Liveness;
  /** Seconds after which a wait for a live rank fails. */
  readonly timeoutSeconds: number;
  /** Gets the line about a late rank. */
  readonly report: (text: string) => void;
  /** Seconds after which a live rank counts as late. */
  readonly reportSeconds: number;
  /** Looks at a word this often before it sleeps. */
  readonly spins: number;
}

/** What the groups of one rank have in common. */
export type WorldOptions = Pick<
  ControlOptions,
  "abort" | "liveness" | "timeoutSeconds" | "report" | "reportSeconds" | "spins"
>;

/** How often to look before sleeping: briefly where ranks share cores, since the awaited one needs the core. */
export function spinsFor(worldSize: number, cores: number): number {
  return worldSize <= cores ? 4000 : 40;
}

/** The counters of a group, and the waits on them. */
export class Control {
  readonly options: ControlOptions;
  timeoutSeconds: number;
  readonly #words: Int32Array;
  readonly #base: number;
  readonly #bases: readonly number[];
  readonly #log: CallLog;
  #sequence = 0;

  /** @param options the group, its words, and how to sleep on them */
  constructor(options: ControlOptions) {
    this.options = options;
    this.timeoutSeconds = options.timeoutSeconds;
    this.#words = options.words;
    this.#bases = Array.from({ length: options.size }, (_, rank) => rank * BLOCK_WORDS);
    this.#base = options.rank * BLOCK_WORDS;
    this.#log = new CallLog(options.words, this.#bases.map((base) => base + LOG), options.rank);
  }

  /** Publishes this rank's next call and compares it with the peers'. See Note [Who compares]. */
  announce(
    sequence: number,
    kind: CallKind,
    dtype: DType | undefined,
    count: number,
    detail: number,
    label: string,
  ): void {
    const { size, rank } = this.options;
    if (size > 1) this.#waitAll(VERIFIED, sequence - CALLS_KEPT, "comparing its calls");
    this.#log.write(sequence, kind, dtype, count, detail, label);
    this.#sequence = sequence;
    const words = this.#words;
    Atomics.store(words, this.#base + PHASE, INSIDE);
    this.raise(SEQUENCE, sequence);
    this.throwIfAborted();
    for (let peer = 0; peer < size; peer++) {
      if (peer === rank) continue;
      const reached = Atomics.load(words, (this.#bases[peer] ?? 0) + SEQUENCE);
      if (((reached - sequence) | 0) >= 0 && !this.#log.agrees(peer, sequence)) this.#mismatch(sequence);
    }
    this.raise(VERIFIED, sequence);
  }

  /** Says that the announced call is over, for messages of others. */
  leave(): void {
    Atomics.store(this.#words, this.#base + PHASE, OUTSIDE);
  }

  /** Says that this rank will make no more calls. */
  depart(): void {
    Atomics.store(this.#words, this.#base + PHASE, LEFT);
    this.#ring();
  }

  /** Raises one of this rank's counters. See Note [Bell]. */
  raise(field: number, value: number): void {
    Atomics.store(this.#words, this.#base + field, value | 0);
    if (Atomics.load(this.#words, this.#base + SLEEPERS) > 0) this.#ring();
  }

  /** Waits until every peer's counter has reached `target`. `stage` says what they should do, e.g. `contribute`. */
  waitAll(field: number, target: number, stage: string): void {
    this.#waitAll(field, target, stage);
  }

  /** Waits until a rank's counter has reached `target`. */
  waitFor(rank: number, field: number, target: number, stage: string): void {
    const at = (this.#bases[rank] ?? 0) + field;
    if (((Atomics.load(this.#words, at) - target) | 0) < 0) this.#block(rank, at, target | 0, stage);
  }

  /** Fails if the world was aborted. */
  throwIfAborted(): void {
    if (this.options.abort.isSet) throw this.#aborted();
  }

  /** Stops the world and wakes the ranks of this group that sleep. */
  abort(reason: string): void {
    const { abort, worldRanks, rank, futex } = this.options;
    abort.set(worldRanks[rank] ?? rank, reason);
    for (const base of this.#bases) {
      Atomics.add(this.#words, base + BELL, 1);
      futex.wake(base + BELL);
    }
  }

  /** An error about the call that this rank is in. */
  failure(detail: string, cause?: unknown): CollectiveError {
    return new CollectiveError(this.#facts(), detail, cause === undefined ? undefined : { cause });
  }

  #waitAll(field: number, target: number, stage: string): void {
    const { size, rank } = this.options;
    for (let peer = 0; peer < size; peer++) if (peer !== rank) this.waitFor(peer, field, target, stage);
  }

  #ring(): void {
    Atomics.add(this.#words, this.#base + BELL, 1);
    this.options.futex.wake(this.#base + BELL);
  }

  #block(rank: number, at: number, target: number, stage: string): void {
    const { spins, futex, reportSeconds } = this.options;
    const words = this.#words;
    for (let i = 0; i < spins; i++) if (((Atomics.load(words, at) - target) | 0) >= 0) return;
    const base = this.#bases[rank] ?? 0;
    const start = performance.now();
    let probeAt = start + PROBE_MS;
    let reportAt = start + reportSeconds * 1000;
    for (;;) {
      this.throwIfAborted();
      Atomics.add(words, base + SLEEPERS, 1);
      const bell = Atomics.load(words, base + BELL);
      if (((Atomics.load(words, at) - target) | 0) < 0) futex.wait(base + BELL, bell, SLEEP_MS);
      Atomics.sub(words, base + SLEEPERS, 1);
      if (((Atomics.load(words, at) - target) | 0) >= 0) return;
      const now = performance.now();
      if (now >= probeAt || Atomics.load(words, base + PHASE) === LEFT) {
        probeAt = now + PROBE_MS;
        this.#failIfGone(rank, at, target, stage);
      }
      if (now >= reportAt) {
        reportAt = Infinity;
        this.options.report(this.#late(rank, stage, now - start));
      }
      if (now - start > this.timeoutSeconds * 1000) this.#expire(stage, at - base, target);
    }
  }

  /** Stops the world if a rank has died or left without raising the counter. */
  #failIfGone(rank: number, at: number, target: number, stage: string): void {
    const worldRank = this.#worldRank(rank);
    const left = Atomics.load(this.#words, (this.#bases[rank] ?? 0) + PHASE) === LEFT;
    const dead = !left && this.options.liveness.isDead(worldRank);
    if (!left && !dead) return;
    // It may have raised the counter just before.
    if (((Atomics.load(this.#words, at) - target) | 0) >= 0) return;
    // A dead rank's own cause, or that of whoever saw it first, comes before ours.
    this.throwIfAborted();
    const how = dead ? "died (its process or Worker is gone)" : "has left the group";
    this.#stop(`rank ${worldRank} ${how} while it was awaited (${stage}); it was last ${this.#lastSeen(rank)}`);
  }

  #expire(stage: string, field: number, target: number): never {
    const missing: string[] = [];
    for (let peer = 0; peer < this.options.size; peer++) {
      if (peer === this.options.rank) continue;
      const value = Atomics.load(this.#words, (this.#bases[peer] ?? 0) + field);
      const state = ((value - target) | 0) < 0 ? "awaited" : "here";
      missing.push(`rank ${this.#worldRank(peer)} (${state}) was last ${this.#lastSeen(peer)}`);
    }
    return this.#stop(`waited ${this.timeoutSeconds} s (${stage}): ${missing.join("; ")}`);
  }

  #stop(detail: string): never {
    const { rank, name } = this.options;
    this.abort(
      `${detail} [found by rank ${this.#worldRank(rank)} in ${this.#op()}, group '${name}', call ${this.#sequence}]`,
    );
    throw this.failure(detail);
  }

  #late(rank: number, stage: string, elapsedMs: number): string {
    const { name } = this.options;
    const me = this.#worldRank(this.options.rank);
    return `Rank ${me} has waited ${(elapsedMs / 1000).toFixed(1)} s in ${this.#op()} (group '${name}', call ` +
      `${this.#sequence}) for rank ${this.#worldRank(rank)} (${stage}), which is alive and was last ` +
      `${this.#lastSeen(rank)}. Fails at ${this.timeoutSeconds} s`;
  }

  #lastSeen(rank: number): string {
    const base = this.#bases[rank] ?? 0;
    const sequence = Atomics.load(this.#words, base + SEQUENCE);
    if (sequence === 0) return "seen joining, with no call yet";
    const phase = Atomics.load(this.#words, base + PHASE) === INSIDE ? "in" : "seen after";
    return `${phase} call ${sequence >>> 0}, ${this.#log.describe(rank, sequence)}`;
  }

  /** Ends the world because ranks called different things: names the call of every rank that has made it. */
  #mismatch(sequence: number): never {
    const groups = new Map<string, number[]>();
    const absent: number[] = [];
    for (let rank = 0; rank < this.options.size; rank++) {
      const reached = Atomics.load(this.#words, (this.#bases[rank] ?? 0) + SEQUENCE);
      if (((reached - sequence) | 0) < 0) {
        absent.push(this.#worldRank(rank));
        continue;
      }
      const text = this.#log.describe(rank, sequence);
      groups.set(text, [...(groups.get(text) ?? []), this.#worldRank(rank)]);
    }
    const list = [...groups].map(([text, ranks]) => `rank ${ranks.join(", ")} calls ${text}`);
    if (absent.length > 0) list.push(`rank ${absent.join(", ")} has not come so far`);
    const detail = groups.size === 1
      ? `ranks make the same call with different runs, root, operation or factor: ${list.join("; ")}`
      : `ranks make different calls: ${list.join("; ")}`;
    this.abort(`${detail} (group '${this.options.name}', call ${sequence})`);
    throw this.failure(detail);
  }

  #aborted(): CollectiveError {
    const cause = this.options.abort.cause;
    if (cause === undefined || cause.rank < 0) return this.failure(cause?.reason ?? "stopped");
    const facts = this.#facts();
    const isOther = cause.rank !== facts.rank;
    return new CollectiveError(
      isOther ? { ...facts, stoppedBy: cause.rank } : facts,
      `rank ${cause.rank} stopped all ranks: ${cause.reason}`,
    );
  }

  #facts(): CollectiveFacts {
    const { name, rank } = this.options;
    return { group: name, rank: this.#worldRank(rank), op: this.#op(), sequence: this.#sequence };
  }

  #op(): string {
    return this.#log.describe(this.options.rank, this.#sequence);
  }

  #worldRank(rank: number): number {
    return this.options.worldRanks[rank] ?? rank;
  }
}
