/**
 * The collectives that users and the layers above call. A group checks arguments, numbers each call from 1, announces it
 * so that ranks which call different things find out, and hands it to a {@link Transport}. It holds no memory.
 *
 * Whatever can fail on one rank only belongs into {@link ProcessGroup.throwTogether}: then all ranks stop.
 *
 * @module
 */
import { type DType, int64 } from "../dtype.ts";
import type { DevicePtr } from "../device/device.ts";
import { ArgumentError, CollectiveError, UseAfterDisposeError } from "../errors.ts";
import type { NormReducer } from "../tensor/parameter.ts";
import { HASH_START, hashNumber } from "./transports/call_log.ts";
import type { AllReduceOp, CallKind, GatherWindow, ReduceScatterArgs, Run, Transport } from "./transport.ts";
import type { Work } from "./work.ts";

/** How an all-reduce combines, and its name in messages. */
export interface AllReduceOptions {
  /** Default `sum`. */
  readonly op?: AllReduceOp;
  /** Factor applied once, after the sum; default 1. Floats only. */
  readonly scale?: number;
  /** What is reduced, e.g. `token count`. */
  readonly label: string;
}

/**
 * Some ranks that call collectives together. All methods but `abort` and `dispose` are collective: every rank of the
 * group makes the same calls in the same order, and ranks that do not are named, with both calls, on every rank.
 *
 * @example
 * ```ts ignore
 * const group = await openProcessGroup({ device });
 * group.allReduce(gradient, n, float32, { scale: 1 / group.size, label: "gradient" }).wait();
 * const [tokens] = group.sum([batch.tokens], "token count");
 * ```
 */
export class ProcessGroup implements NormReducer {
  readonly #transport: Transport;
  readonly #children: ProcessGroup[] = [];
  #sequence = 0;
  #disposed = false;

  /** @param transport what moves the bytes; the group owns it */
  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Name, e.g. `world`. */
  get name(): string {
    return this.#transport.name;
  }

  /** This rank's place in the group. */
  get rank(): number {
    return this.#transport.rank;
  }

  /** How many ranks there are. */
  get size(): number {
    return this.#transport.size;
  }

  /** Rank in the first group, of each rank of this one. */
  get worldRanks(): readonly number[] {
    return this.#transport.worldRanks;
  }

  /** The transport's name: `loopback`, `shm`, … */
  get kind(): string {
    return this.#transport.kind;
  }

  /** Bytes that this rank's allocator counts as in use although all ranks share them: staging. */
  get sharedBytes(): number {
    return this.#transport.sharedBytes;
  }

  /** Number of calls made. */
  get sequence(): number {
    return this.#sequence;
  }

  /** Seconds after which a wait for a live rank fails; raise it on the waiting ranks while one loads or saves. */
  get timeoutSeconds(): number {
    return this.#transport.timeoutSeconds;
  }

  set timeoutSeconds(seconds: number) {
    if (!(seconds > 0)) throw new ArgumentError(`timeoutSeconds must be positive, got ${seconds}`);
    this.#transport.timeoutSeconds = seconds;
  }

  /**
   * Combines an array over ranks, in place; every rank gets the same bits.
   *
   * @param ptr `n` elements in device memory
   * @param dtype float32 or bfloat16 (summed as float32 in rank order); int64 for exact sums
   * @throws {CollectiveError} if a rank died, is late beyond the timeout, or calls something else
   */
  allReduce(ptr: DevicePtr, n: number, dtype: DType, options: AllReduceOptions): Work {
    const { op = "sum", scale = 1, label } = options;
    checkCount("n", n);
    if (scale !== 1 && (op !== "sum" || dtype.kind !== "float")) {
      throw new ArgumentError(`A scale of ${scale} needs a sum of floats, got ${op} of ${dtype.name} in '${label}'`);
    }
    this.#announce("all-reduce", dtype, n, hashScale(op === "max" ? 1 : 0, scale), label);
    return this.#transport.allReduce(ptr, n, dtype, op, scale);
  }

  /**
   * Sums a flat array over ranks; each keeps its run. `dst` lies outside `src`, or is exactly the rank's own run.
   *
   * @param label what is reduced, e.g. `layers.7 (backward)`
   * @throws {ArgumentError} if runs are not one a rank, ascending and disjoint, or `dst` cuts into `src`
   * @throws {CollectiveError} if a rank died, is late beyond the timeout, or calls something else
   */
  reduceScatter(args: ReduceScatterArgs, label: string): Work {
    const { src, dtype, runs, dst, dstDtype, scale, accumulate } = args;
    if (runs.length !== this.size) {
      throw new ArgumentError(`'${label}' needs one run for each of ${this.size} ranks, got ${runs.length}`);
    }
    let end = 0;
    let total = 0;
    let hash = hashScale(dstDtype.code, scale);
    for (const { offset, length } of runs) {
      if (!(Number.isSafeInteger(offset) && Number.isSafeInteger(length) && offset >= end && length >= 0)) {
        throw new ArgumentError(`Runs of '${label}' must ascend without overlap, got ${describeRuns(runs)}`);
      }
      end = offset + length;
      total += length;
      hash = hashNumber(hashNumber(hash, offset), length);
    }
    const own = runs[this.rank];
    if (own !== undefined && own.length > 0) {
      const inPlace = dst === src + own.offset * dtype.byteLength && dstDtype === dtype && !accumulate;
      const cuts = dst < src + end * dtype.byteLength && src < dst + own.length * dstDtype.byteLength;
      if (cuts && !inPlace) {
        throw new ArgumentError(`'dst' of '${label}' cuts into 'src', and is not the rank's own run`);
      }
    }
    this.#announce("reduce-scatter", dtype, total, hash, label);
    return this.#transport.reduceScatter(args);
  }

  /** Gives every rank the `byteLength` bytes of each: rank r's at `dst + r * byteLength`. */
  allGather(dst: DevicePtr, src: DevicePtr, byteLength: number, label: string): Work {
    checkCount("byteLength", byteLength);
    this.#announce("all-gather", undefined, byteLength, 0, label);
    return this.#transport.allGather(dst, src, byteLength);
  }

  /** Copies `byteLength` bytes of rank `root` to every other. */
  broadcast(ptr: DevicePtr, byteLength: number, root: number, label: string): Work {
    checkCount("byteLength", byteLength);
    if (!(Number.isInteger(root) && root >= 0 && root < this.size)) {
      throw new ArgumentError(`Root ${root} of '${label}' is not in group '${this.name}' of ${this.size}`);
    }
    this.#announce("broadcast", undefined, byteLength, root, label);
    return this.#transport.broadcast(ptr, byteLength, root);
  }

  /** Adds up the integers of exact accumulators; see {@link NormReducer}. */
  sumLimbs(accumulators: DevicePtr, limbs: number): void {
    this.allReduce(accumulators, limbs, int64, { op: "sum", label: "gradient norm" }).wait();
  }

  /** Returns once every rank has called it. */
  barrier(label: string): void {
    this.#announce("barrier", undefined, 0, 0, label);
    this.#transport.barrier();
  }

  /** Gives every rank the host bytes of each, of any and unequal lengths. */
  exchange(bytes: Uint8Array, label: string): readonly Uint8Array[] {
    this.#announce("exchange", undefined, 0, 0, label);
    return this.#transport.exchange(bytes);
  }

  /** Gives every rank a text of each. */
  exchangeText(text: string, label: string): readonly string[] {
    return this.exchange(new TextEncoder().encode(text), label).map((bytes) => new TextDecoder().decode(bytes));
  }

  /**
   * Sums host numbers over ranks, in float64 and rank order: the same bits on every rank.
   *
   * @returns one sum for each value
   * @throws {CollectiveError} if ranks give unequal numbers of values
   */
  sum(values: readonly number[], label: string): number[] {
    this.#announce("exchange", undefined, values.length * 8, 0, label);
    const own = Float64Array.from(values);
    const totals = new Float64Array(values.length);
    for (const part of this.#transport.exchange(new Uint8Array(own.buffer))) {
      const theirs = new Float64Array(part.buffer, part.byteOffset, values.length);
      for (let i = 0; i < totals.length; i++) totals[i] = (totals[i] ?? 0) + (theirs[i] ?? 0);
    }
    return [...totals];
  }

  /**
   * Makes a failure of some ranks a failure of all: if any rank passes an error, every rank throws.
   *
   * @param error this rank's failure, or `undefined`
   * @throws {CollectiveError} naming the failed ranks and what they said; its `cause` is this rank's own error
   */
  throwTogether(error: Error | undefined, label: string): void {
    this.#announce("exchange", undefined, 0, 1, label);
    const text = error === undefined ? "" : `${error.name}: ${error.message}`;
    const parts = this.#transport.exchange(new TextEncoder().encode(text));
    const failed = new Map<string, number[]>();
    parts.forEach((part, rank) => {
      if (part.length === 0) return;
      const said = new TextDecoder().decode(part);
      failed.set(said, [...(failed.get(said) ?? []), this.worldRanks[rank] ?? rank]);
    });
    if (failed.size === 0) return;
    const [stoppedBy] = error === undefined ? [...failed.values()].flat() : [];
    const list = [...failed].map(([said, ranks]) => `rank ${ranks.join(", ")} failed: ${said}`);
    const facts = {
      group: this.name,
      rank: this.worldRanks[this.rank] ?? this.rank,
      op: `'${label}'`,
      sequence: this.#sequence,
      ...stoppedBy === undefined ? {} : { stoppedBy },
    };
    throw new CollectiveError(facts, list.join("; "), error === undefined ? undefined : { cause: error });
  }

  /**
   * Memory of which each rank writes a part and gathers all. Contents start as zeros, and may be gathered at once.
   *
   * @param byteLengths bytes of each rank's part, the same list on every rank
   * @param label the unit that it holds, e.g. `layers.7`
   */
  openWindow(byteLengths: readonly number[], label: string): GatherWindow {
    if (byteLengths.length !== this.size) {
      throw new ArgumentError(
        `Window '${label}' needs a length for each of ${this.size} ranks, got ${byteLengths.length}`,
      );
    }
    let total = 0;
    let hash = HASH_START;
    for (const bytes of byteLengths) {
      checkCount("byteLengths", bytes);
      total += bytes;
      hash = hashNumber(hash, bytes);
    }
    this.#announce("open window", undefined, total, hash, label);
    const announce = (kind: CallKind, bytes: number, text: string): void =>
      this.#announce(kind, undefined, bytes, 0, text);
    return new AnnouncedWindow(this.#transport.openWindow([...byteLengths], label), announce, label, total);
  }

  /**
   * A group of some of the ranks. Collective over all ranks of this group: each passes the list that it belongs to.
   *
   * @param ranks ranks of this group, ascending, with this rank among them
   * @param name the new group's name, for messages
   */
  split(ranks: readonly number[], name: string): ProcessGroup {
    let last = -1;
    for (const rank of ranks) {
      if (!(Number.isInteger(rank) && rank > last && rank < this.size)) {
        throw new ArgumentError(`Ranks of group '${name}' must ascend within 0 to ${this.size - 1}, got ${ranks}`);
      }
      last = rank;
    }
    if (!ranks.includes(this.rank)) {
      throw new ArgumentError(`Rank ${this.rank} is not in its own part [${ranks.join(", ")}] of group '${name}'`);
    }
    this.#announce("split", undefined, 0, 0, name);
    const child = new ProcessGroup(this.#transport.split(ranks, name));
    this.#children.push(child);
    return child;
  }

  /** Stops all ranks of the world: their present and future collectives fail with `reason`. Never blocks. */
  abort(reason: string): void {
    this.#transport.abort(reason);
  }

  /** Leaves the group and those split from it. A rank that still waits for this one fails. Never blocks. */
  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    for (const child of this.#children.reverse()) child.dispose();
    this.#transport.dispose();
  }

  /** Same as {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    this.dispose();
  }

  #announce(kind: CallKind, dtype: DType | undefined, count: number, detail: number, label: string): void {
    if (this.#disposed) throw new UseAfterDisposeError(`Group '${this.name}' was disposed before ${kind} '${label}'`);
    this.#sequence++;
    this.#transport.announce(this.#sequence, kind, dtype, count, detail, label);
  }
}

/** Announces a call of a window. */
type Announce = (kind: CallKind, bytes: number, label: string) => void;

/** A window whose gathers and writes are numbered and compared like all calls. */
class AnnouncedWindow implements GatherWindow {
  readonly pointer: DevicePtr;
  readonly byteLengths: readonly number[];
  readonly #window: GatherWindow;
  readonly #announce: Announce;
  readonly #label: string;
  readonly #bytes: number;
  #state: "readable" | "writing" | "disposed" = "readable";

  constructor(window: GatherWindow, announce: Announce, label: string, bytes: number) {
    this.#window = window;
    this.#announce = announce;
    this.#label = label;
    this.#bytes = bytes;
    this.pointer = window.pointer;
    this.byteLengths = window.byteLengths;
  }

  beginWrite(): void {
    this.#expect("readable", "begin writing");
    this.#announce("write", this.#bytes, this.#label);
    this.#window.beginWrite();
    this.#state = "writing";
  }

  endWrite(): void {
    this.#expect("writing", "end writing");
    this.#window.endWrite();
    this.#state = "readable";
  }

  gather(dst: DevicePtr, offsets: readonly number[], label: string): Work {
    this.#expect("readable", "gather");
    if (offsets.length !== this.byteLengths.length) {
      throw new ArgumentError(`Gather '${label}' needs ${this.byteLengths.length} offsets, got ${offsets.length}`);
    }
    this.#announce("gather", this.#bytes, label);
    return this.#window.gather(dst, offsets, label);
  }

  dispose(): void {
    if (this.#state === "disposed") return;
    this.#state = "disposed";
    this.#window.dispose();
  }

  #expect(state: "readable" | "writing", what: string): void {
    if (this.#state === "disposed") {
      throw new UseAfterDisposeError(`Cannot ${what} window '${this.#label}' as it was disposed`);
    }
    if (this.#state !== state) {
      throw new ArgumentError(`Cannot ${what} window '${this.#label}' as it is ${this.#state}, not ${state}`);
    }
  }
}

function checkCount(what: string, value: number): void {
  if (!(Number.isSafeInteger(value) && value >= 0)) {
    throw new ArgumentError(`${what} must be a non-negative integer, got ${value}`);
  }
}

const SCALE = new Float64Array(1);
const SCALE_WORDS = new Int32Array(SCALE.buffer);

/** A hash of a number's bits, so that ranks with unequal factors find out. */
function hashScale(start: number, scale: number): number {
  SCALE[0] = scale;
  return hashNumber(hashNumber(hashNumber(HASH_START, start), SCALE_WORDS[0] ?? 0), SCALE_WORDS[1] ?? 0);
}

function describeRuns(runs: readonly Run[]): string {
  return runs.map(({ offset, length }) => `${offset}+${length}`).join(", ");
}
