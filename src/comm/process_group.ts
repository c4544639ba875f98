/**
 * The collectives that users and the layers above call. A group checks the arguments, numbers the call from 1, hands it to
 * its listeners and announces it, so that ranks which make different calls are found; then its data plane or control plane
 * makes the call. The group holds no memory.
 *
 * An action that may fail on one rank alone belongs in {@link ProcessGroup.together}: then all ranks stop.
 *
 * @module
 */
import type { DType } from "../dtype.ts";
import type { BlockSource } from "../device/buffer.ts";
import type { DevicePtr } from "../device/device.ts";
import { ArgumentError, UseAfterDisposeError } from "../errors.ts";
import { takeAll } from "../unwind.ts";
import { type Call, hashNumbers, isCollective, type Phase } from "./call.ts";
import { checkAllReduce, checkCount, checkParts, checkPerRank, checkRank, checkReduceScatter } from "./checks.ts";
import type { ControlPlane } from "./control_plane.ts";
import type { DataPlane, Transfer, Work } from "./data_plane.ts";
import type { FlightRecord } from "./flight_record.ts";
import { announcedMemory, AnnouncedWindow, type GatherWindow } from "./gather_window.ts";
import type { MeshAxis } from "./mesh.ts";
import { numberBytes, sumOfNumbers } from "./numbers.ts";
import { type AllReduceOptions, factorOf, type ReduceScatterOptions } from "./reductions.ts";
import { attempt, exchangeOutcomes } from "./together.ts";
import { endingWith } from "./work_end.ts";

/** Timeout while a rank reads, writes or tokenizes; a rank that dies meanwhile is still noticed within seconds. */
const PATIENCE_SECONDS: number = 24 * 3600;

/** Receives each call of a group and of the groups split from it, before it is made or when it has ended. */
export type CallListener = (call: Call, group: ProcessGroup) => void;

/**
 * Ranks that call collectives together. All methods but `observe`, `send`, `receive`, `transfer`, `flightRecord`, `abort`
 * and `dispose` are collective: every rank of the group makes the same calls in the same order. If ranks make different
 * calls, the error names both calls and their ranks.
 *
 * @example
 * ```ts ignore
 * const group = await openProcessGroup({ device });
 * group.allReduce(gradient, n, float32, { unit: "gradient" }).wait();
 * const [tokens] = group.sum([batch.tokens], "token count");
 * ```
 */
export class ProcessGroup {
  /** Name, e.g. `world`. */
  readonly name: string;
  /** This rank's place in the group. */
  readonly rank: number;
  /** Number of ranks. */
  readonly size: number;
  /** World rank of each rank of this group. */
  readonly worldRanks: readonly number[];
  /** Kind of its data plane: `loopback`, `shm`, … */
  readonly kind: string;
  /** `rank-order` if sums add the ranks in their order, so that their bits follow from the inputs alone. */
  readonly sums: DataPlane["sums"];
  /** Bytes of staging that this rank's allocator counts as in use, although all ranks share them. */
  readonly stagingBytes: number;
  /** Ranks that share them. */
  readonly stagingRanks: number;
  /** True if gathered parameters lie in memory that ranks register with each other. */
  readonly registersMemory: boolean;
  /** True if its collectives are only enqueued on the device, so that a graph may hold them; else the host takes part. */
  readonly isEnqueued: boolean;
  /**
   * The backend whose memory a dry run allocates to stand for this group, and the sizes of its staging.
   *
   * @internal
   */
  readonly twin: NonNullable<DataPlane["staging"]> & { readonly standsFor: DataPlane["dryBackend"] };
  /** The axis of a larger mesh whose group this is; `undefined` for a plain group. */
  readonly mesh: MeshAxis | undefined;
  readonly #control: ControlPlane;
  readonly #data: DataPlane;
  readonly #parent: ProcessGroup | undefined;
  /** This group, its parent, the parent's parent, …. */
  readonly #lineage: readonly ProcessGroup[];
  readonly #children = new Set<ProcessGroup>();
  readonly #before = new Set<CallListener>();
  readonly #after = new Set<CallListener>();
  #sequence = 0;
  #step = 0;
  #disposed = false;

  /** Takes ownership of the planes. @param parent the group that it was split from */
  constructor(control: ControlPlane, data: DataPlane, parent?: ProcessGroup, mesh?: MeshAxis) {
    this.name = control.name;
    this.rank = control.rank;
    this.size = control.size;
    this.worldRanks = control.worldRanks;
    this.kind = data.kind;
    this.sums = data.sums;
    this.stagingBytes = data.stagingBytes;
    this.stagingRanks = data.stagingRanks ?? control.size;
    this.registersMemory = data.registersMemory === true;
    this.twin = { ...data.staging, standsFor: data.dryBackend };
    this.isEnqueued = data.isEnqueued === true;
    this.mesh = mesh;
    this.#control = control;
    this.#data = data;
    this.#parent = parent;
    this.#lineage = parent === undefined ? [this] : [this, ...parent.#lineage];
  }

  /**
   * Tells messages about this group that it has the ranks of an axis.
   *
   * @internal
   */
  nameAxis(axis: string): void {
    this.#control.axes.add(axis);
  }

  /** True once this rank has left the group. */
  get disposed(): boolean {
    return this.#disposed;
  }

  /** Number of calls made so far. */
  get sequence(): number {
    return this.#sequence;
  }

  /** Step of the training, for the records of calls; a group shares it with its parent. */
  get step(): number {
    return this.#parent?.step ?? this.#step;
  }

  set step(step: number) {
    if (this.#parent === undefined) this.#step = step;
    else this.#parent.step = step;
  }

  /** Seconds after which a wait for a live rank fails; raise it on the waiting ranks while one loads or saves. */
  get timeoutSeconds(): number {
    return this.#control.timeoutSeconds;
  }

  set timeoutSeconds(seconds: number) {
    if (!(seconds > 0)) throw new ArgumentError(`timeoutSeconds must be positive, got ${seconds}`);
    this.#control.timeoutSeconds = seconds;
  }

  /**
   * Calls `before` with every call that is about to be made, and `after` when it has returned or thrown. A call that is
   * refused, as ranks differ or a rank has stopped all, gets no `after`.
   *
   * @returns stops observing
   */
  observe(before: CallListener, after?: CallListener): () => void {
    this.#before.add(before);
    if (after !== undefined) this.#after.add(after);
    return () => {
      this.#before.delete(before);
      if (after !== undefined) this.#after.delete(after);
    };
  }

  /**
   * Combines an array over ranks, in place; every rank gets the same bits.
   *
   * @param ptr `n` elements in device memory
   * @param dtype float32, bfloat16 or float16 (summed as float32); int64 for exact sums
   * @throws {CollectiveError} if a rank died, is late beyond the timeout, or calls something else
   */
  allReduce(ptr: DevicePtr, n: number, dtype: DType, options: AllReduceOptions): Work {
    const { op = "sum", scale, unit, phase } = options;
    checkCount("n", n);
    checkAllReduce(dtype, op, scale !== undefined, unit);
    const detail = hashNumbers([op === "max" ? 1 : 0, factorOf(scale)]);
    using _call = this.announce({ kind: "all-reduce", unit, phase, dtype, count: n, detail });
    return this.#data.allReduce({ ptr, n, dtype, op, scale: scale?.ptr });
  }

  /**
   * Reduce-scatters a flat array: sums it over ranks, and each rank keeps its own slice. `dst` lies outside `src`, or is
   * exactly this rank's slice.
   *
   * @param unit name of the unit, e.g. `layers.7`
   * @throws {ArgumentError} if slices are not one a rank, ascending and disjoint, or `dst` cuts into `src`
   * @throws {CollectiveError} if a rank died, is late beyond the timeout, or calls something else
   */
  reduceScatter({ scale, ...args }: ReduceScatterOptions, unit: string, phase?: Phase): Work {
    checkReduceScatter(args, this.rank, this.size, unit);
    const { dtype, slices, dstDtype } = args;
    const count = slices.reduce((sum, { length }) => sum + length, 0);
    const places = slices.flatMap(({ offset, length }) => [offset, length]);
    const detail = hashNumbers([dstDtype.code, factorOf(scale), ...places]);
    using _call = this.announce({ kind: "reduce-scatter", unit, phase, dtype, count, detail });
    return this.#data.reduceScatter({ ...args, scale: scale?.ptr });
  }

  /** Gives every rank `byteLength` bytes of all ranks: rank r's at `dst + r * byteLength`. */
  allGather(dst: DevicePtr, src: DevicePtr, byteLength: number, unit: string, phase?: Phase): Work {
    checkCount("byteLength", byteLength);
    const detail = hashNumbers([this.#placeOf(dst), this.#placeOf(src)]);
    using _call = this.announce({ kind: "all-gather", unit, phase, count: byteLength, detail });
    return this.#data.allGather(dst, src, byteLength);
  }

  /** Copies `byteLength` bytes of rank `root` to every other rank. */
  broadcast(ptr: DevicePtr, byteLength: number, root: number, unit: string, phase?: Phase): Work {
    checkCount("byteLength", byteLength);
    checkRank(root, this.size, `The root of '${unit}'`);
    using _call = this.announce({ kind: "broadcast", unit, phase, count: byteLength, detail: root });
    return this.#data.broadcast(ptr, byteLength, root);
  }

  /**
   * Begins to send to other ranks and to receive from them, side by side (PyTorch's `batch_isend_irecv`); messages to one rank keep
   * their order. Only senders and receivers call it. This rank may compute until `wait()`, and must leave the memory alone.
   *
   * @throws {CollectiveError} if the other rank gives another length, died, or is late beyond the timeout
   */
  transfer(transfers: readonly Transfer[], unit: string, phase?: Phase): Work {
    for (const { byteLength, peer } of transfers) {
      checkCount("byteLength", byteLength);
      checkRank(peer, this.size, `The other end of '${unit}'`);
      if (peer === this.rank) throw new ArgumentError(`Rank ${peer} cannot send '${unit}' to itself`);
    }
    const count = transfers.reduce((sum, { byteLength }) => sum + byteLength, 0);
    const call = this.announce({ kind: "send and receive", unit, phase, count });
    return endingWith(call, () => this.#data.transfer(transfers));
  }

  /** Sends `byteLength` bytes to rank `to`, which receives them. */
  send(ptr: DevicePtr, byteLength: number, to: number, unit: string, phase?: Phase): Work {
    return this.transfer([{ kind: "send", ptr, byteLength, peer: to }], unit, phase);
  }

  /** Receives `byteLength` bytes from rank `from`, which sends them. */
  receive(ptr: DevicePtr, byteLength: number, from: number, unit: string, phase?: Phase): Work {
    return this.transfer([{ kind: "receive", ptr, byteLength, peer: from }], unit, phase);
  }

  /** Returns once every rank has called it. */
  barrier(unit: string): void {
    using _call = this.announce({ kind: "barrier", unit });
    this.#control.exchange(new Uint8Array());
  }

  /** Gives every rank the host bytes of all ranks, whose lengths may differ. */
  exchange(bytes: Uint8Array, unit: string): readonly Uint8Array[] {
    using _call = this.announce({ kind: "exchange", unit });
    return this.#control.exchange(bytes);
  }

  /** Gives every rank the texts of all ranks. */
  exchangeText(text: string, unit: string): readonly string[] {
    return this.exchange(new TextEncoder().encode(text), unit).map((bytes) => new TextDecoder().decode(bytes));
  }

  /**
   * Sums host numbers over ranks, in float64 and rank order, so that all ranks get the same bits.
   *
   * @returns one sum for each value
   * @throws {CollectiveError} if ranks give unequal numbers of values
   * @throws {ArgumentError} if there is anything but numbers
   */
  sum(values: readonly number[], unit: string): number[] {
    const bytes = numberBytes(values, unit);
    using _call = this.announce({ kind: "exchange", unit, count: bytes.length });
    return sumOfNumbers(this.#control.exchange(bytes), values.length);
  }

  /**
   * Calls `action` on every rank and returns once all have ended it, however long that takes: late ranks are reported, and
   * fail after a day. `action` must not call collectives that a rank which fails early would skip. Where another rank fails, the result
   * of `action` is lost: what it opens belongs on a `DisposableStack` of the caller.
   *
   * @param what name of the action, e.g. `save checkpoint 3`
   * @throws the error of this rank's action; if that succeeded, a {@link CollectiveError} naming the failed ranks and their
   * errors
   */
  async together<T>(what: string, action: () => T | Promise<T>): Promise<T> {
    using _call = this.announce({ kind: "together", unit: what });
    const { timeoutSeconds } = this;
    this.timeoutSeconds = Math.max(timeoutSeconds, PATIENCE_SECONDS);
    try {
      const [outcome] = await Promise.allSettled([(async () => await action())()]);
      return exchangeOutcomes(this.#control, outcome).value;
    } finally {
      this.timeoutSeconds = timeoutSeconds;
    }
  }

  /**
   * Calls `action` on every rank: if it fails on one, all fail. Like {@link together}, for actions that take no time.
   *
   * @throws the error of this rank's action; if that succeeded, a {@link CollectiveError} naming the failed ranks and their
   * errors
   */
  agree<T>(what: string, action: () => T): T {
    using _call = this.announce({ kind: "together", unit: what });
    return exchangeOutcomes(this.#control, attempt(action)).value;
  }

  /**
   * Opens memory in parts, one for each rank: a rank writes its own part, and gathers the parts of all. Contents are zeros, and may be
   * gathered at once.
   *
   * @param byteLengths bytes of each rank's part, the same list on every rank
   * @param unit name of the unit, e.g. `layers.7`
   */
  openWindow(byteLengths: readonly number[], unit: string): GatherWindow {
    checkPerRank(byteLengths, this.size, `Lengths of window '${unit}'`);
    for (const bytes of byteLengths) checkCount("byteLengths", bytes);
    const count = byteLengths.reduce((sum, bytes) => sum + bytes, 0);
    using _call = this.announce({ kind: "open window", unit, count, detail: hashNumbers(byteLengths) });
    const window = this.#data.openWindow([...byteLengths], unit);
    return new AnnouncedWindow(window, [...byteLengths], (call, dst) => {
      return this.announce({ ...call, count, detail: dst === undefined ? 0 : this.#placeOf(dst) });
    });
  }

  /** Memory into which one unit gathers; undefined where the device's allocator serves. Allocating from it may be collective. */
  gatherMemory(): BlockSource | undefined {
    const memory = this.#data.gatherMemory?.();
    return memory && announcedMemory(memory, (call) => this.announce(call));
  }

  /**
   * Makes a group of some of the ranks. Collective over all ranks of this group: each passes the list that it belongs to.
   *
   * @param ranks ranks of this group, ascending, with this rank among them
   * @param mesh the mesh that has the group as an axis
   */
  split(ranks: readonly number[], name: string, mesh?: MeshAxis): ProcessGroup {
    checkParts(ranks, this.rank, this.size, name);
    using _call = this.announce({ kind: "split", unit: name });
    using opened = new DisposableStack();
    const control = opened.adopt(this.#control.split(ranks, name), (plane) => plane.dispose());
    const child = new ProcessGroup(control, this.#data.split(control), this, mesh);
    opened.move();
    this.#children.add(child);
    return child;
  }

  /** Hands a line to this rank's `report` option. */
  report(text: string): void {
    this.#control.report(text);
  }

  /** The last calls of every rank of the group, as the ranks have announced them. */
  flightRecord(): FlightRecord {
    return this.#control.flightRecord();
  }

  /** Stops all ranks of the world: their present and future collectives fail with `reason`. Never blocks. */
  abort(reason: string): void {
    this.#control.abort(reason);
  }

  /** Leaves the group and those split from it. A rank that still waits for this one fails. Never waits. */
  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    if (this.#parent !== undefined) this.#parent.#children.delete(this);
    takeAll([
      ...[...this.#children].toReversed().map((child) => () => child.dispose()),
      () => this.#data.dispose(),
      () => this.#control.dispose(),
    ]);
  }

  /** Same as {@link dispose}, for `using`. */
  [Symbol.dispose](): void {
    this.dispose();
  }

  /** Ranks must gather to the same slot of registered memory, so its number is compared. */
  #placeOf(ptr: DevicePtr): number {
    return this.#data.placeOf === undefined ? 0 : this.#data.placeOf(ptr);
  }

  /**
   * Announces a call that another module makes.
   *
   * @returns tells `after` listeners that the call has ended; undefined if there are none
   * @internal
   */
  announce(call: Pick<Call, "kind" | "unit"> & Partial<Call>): Disposable | undefined {
    const { kind, unit } = call;
    if (this.#disposed) throw new UseAfterDisposeError(`Group '${this.name}' was disposed before ${kind} '${unit}'`);
    if (isCollective(call)) this.#sequence++;
    const { phase, dtype, count = 0, detail = 0 } = call;
    const record = { kind, unit, phase, dtype, count, detail, sequence: this.#sequence, step: this.step };
    for (const group of this.#lineage) for (const listener of group.#before) listener(record, this);
    this.#control.announce(record);
    if (!this.#lineage.some((group) => group.#after.size > 0)) return undefined;
    return {
      [Symbol.dispose]: (): void => {
        for (const group of this.#lineage) for (const listener of group.#after) listener(record, this);
      },
    };
  }
}
