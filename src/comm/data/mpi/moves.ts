/**
 * Messages of MPI between the ranks of a group, from device memory to device memory. The host tests them in a wait of the control
 * plane, so that it ends when a rank dies, is late or calls something else.
 *
 * Note [Failed messages]: MPI's own error often comes before the control plane's, which says more: that a rank died, or that ranks
 * make different calls. So a rank whose message fails waits on for {@link EXPLAIN_MS}, and gives MPI's words only then.
 *
 * @module
 */
import { devicePtr } from "../../../device/device.ts";
import { NativeError, UnsupportedError } from "../../../errors.ts";
import { MPI_LEAST_TAG_UB } from "../../../ffi/bindings/mpi.ts";
import type { NativeAddress } from "../../../ffi/types.ts";
import { at } from "../../../at.ts";
import type { HostsControlPlane } from "../../hosts/plane.ts";
import type { Transfer } from "../../data_plane.ts";
import type { DevicePages } from "../device_pages.ts";
import type { MpiProcess } from "./process.ts";

/** Largest number of bytes of one message; longer ones go in pieces, as MPI counts in 32 bits. */
const PIECE_BYTES = 2 ** 30;
/** Time for which a rank that has a core of its own tests messages before it looks at the control plane. */
const LOOK_MS = 0.2;
const EXPLAIN_MS = 2000;

/** A kind of messages of a group. They are matched apart from the others, and in order. */
type Channel = "collective" | "reduction" | "transfer" | "length";
const CHANNELS: readonly Channel[] = ["collective", "reduction", "transfer", "length"];

/** A message that was begun. */
interface Begun {
  readonly request: NativeAddress;
  readonly isReceive: boolean;
}

/** Messages under way. */
export interface Moving {
  open: readonly Begun[];
  /** Begins messages that had to wait for others. @returns true once none is left to begin */
  begin?: () => boolean;
  /** True if `begin` may stop the group, so that it is left to those who wait for the messages. */
  mayStop?: boolean;
  /** MPI's error about one of them. */
  failure?: NativeError;
}

/** Messages between two ranks that are under way. */
export interface TransfersByMpi {
  /** Moves on without waiting. */
  advance(): void;
  /** Waits until they are finished. @throws {CollectiveError} as {@link Moves.finish} */
  finish(): void;
}

/** The messages of a reduction. */
export interface MessageRounds {
  /** Number of rounds. */
  readonly count: number;
  /** Rounds of which messages are under way at a time. */
  readonly together: number;
  /** The messages of a round. It is called when those of `together` rounds before have finished. */
  readonly messages: (round: number) => readonly Transfer[];
  /** Called in the order of rounds, when a round's messages have finished. It may compute, and must not throw. */
  readonly received: (round: number) => void;
}

/** A message as MPI takes it. */
interface PostedMessage {
  readonly isReceive: boolean;
  readonly place: NativeAddress;
  readonly length: number;
  readonly peer: number;
  readonly channel: Channel;
}

/** The messages of a group. */
export class Moves {
  readonly control: HostsControlPlane;
  readonly #mpi: MpiProcess;
  readonly #pages: DevicePages;
  readonly #tag: number;
  /** Messages that nobody has waited for yet. */
  readonly #underWay = new Set<Moving>();
  #isTesting = false;

  /** Takes tags that no other group of its ranks has. Collective. */
  constructor(control: HostsControlPlane, mpi: MpiProcess, pages: DevicePages) {
    this.control = control;
    this.#mpi = mpi;
    this.#pages = pages;
    const tags = control.exchange(new Uint8Array(Int32Array.of(mpi.nextTag).buffer))
      .map((bytes) => at(new Int32Array(bytes.slice().buffer), 0, "tag"));
    this.#tag = Math.max(...tags);
    mpi.nextTag = this.#tag + CHANNELS.length;
    if (mpi.nextTag > MPI_LEAST_TAG_UB) {
      const most = Math.floor(MPI_LEAST_TAG_UB / CHANNELS.length);
      throw new UnsupportedError(
        `Cannot make a group: MPI's tags are used up after ${most} groups; reuse groups instead of making new ones each step`,
      );
    }
  }

  /** Time in milliseconds for which a rank tests messages before it looks at the control plane; 0 if it tests them once. */
  get lookMs(): number {
    return this.#mpi.sharesCores ? 0 : LOOK_MS;
  }

  /** Begins messages. Memory must not be used until they are finished. */
  begin(transfers: readonly Transfer[], channel: Channel = "collective"): Moving {
    const moving: Moving = { open: this.#postAll(transfers, channel) };
    if (moving.open.length > 0) this.#underWay.add(moving);
    return moving;
  }

  #postAll(transfers: readonly Transfer[], channel: Channel): readonly Begun[] {
    const open: Begun[] = [];
    for (const { kind, ptr, byteLength, peer } of transfers) {
      const isReceive = kind === "receive";
      for (let start = 0; start < byteLength; start += PIECE_BYTES) {
        const length = Math.min(PIECE_BYTES, byteLength - start);
        open.push(this.#post({ isReceive, place: this.#pages.native(devicePtr(ptr + start)), length, peer, channel }));
      }
    }
    return open;
  }

  /** Lets messages move on while this rank waits for something else: nothing moves unless it is tested. */
  progress(): void {
    for (const moving of this.#underWay) this.#test(moving);
  }

  /** As {@link progress}, between kernels, where nothing may stop the group. */
  progressBegun(): void {
    for (const moving of this.#underWay) if (moving.mayStop !== true) this.#test(moving);
  }

  /**
   * Begins the messages of a reduction, round by round. At most one reduction of the group may be under way, as messages of two
   * would be taken for each other's.
   */
  beginRounds({ count, together, messages, received }: MessageRounds): Moving {
    const rounds: (readonly Begun[])[] = [];
    let first = 0;
    const moving: Moving = {
      open: [],
      begin: () => {
        for (;;) {
          while (rounds.length < Math.min(count, first + together)) {
            const begun = this.#postAll(messages(rounds.length), "reduction");
            rounds.push(begun);
            moving.open = [...moving.open, ...begun];
          }
          if (first === count) return true;
          if (at(rounds, first, "round").some((message) => moving.open.includes(message))) return false;
          received(first++);
        }
      },
    };
    if (count > 0) this.#underWay.add(moving);
    this.#test(moving);
    return moving;
  }

  /**
   * Begins messages between two ranks, and waits for none. Senders first send the lengths, and receivers begin to receive when they have them: MPI
   * itself names no rank where lengths differ.
   */
  transfer(transfers: readonly Transfer[]): TransfersByMpi {
    const { provider } = this.#mpi.library;
    // A typed array without an explicit buffer could be moved while MPI writes to it.
    const lengths = new Float64Array(new ArrayBuffer(8 * transfers.length));
    for (const [index, { kind, byteLength }] of transfers.entries()) {
      lengths[index] = kind === "send" ? byteLength : NaN;
    }
    const lengthMessages = transfers.map(({ kind, peer }, index) => {
      const place = provider.offset(provider.addressOf(lengths), index * 8);
      return this.#post({ isReceive: kind === "receive", place, length: 8, peer, channel: "length" });
    });
    const sends = this.#postAll(transfers.filter(({ kind }) => kind === "send"), "transfer");
    const lengthRequests = new Set(lengthMessages.map(({ request }) => request));
    let hasBegun = false;
    const moving: Moving = {
      open: [...lengthMessages, ...sends],
      mayStop: true,
      begin: () => {
        if (hasBegun) return true;
        if (moving.open.some(({ request }) => lengthRequests.has(request))) return false;
        hasBegun = true;
        this.#requireLengths(transfers, lengths);
        const received = this.#postAll(transfers.filter(({ kind }) => kind === "receive"), "transfer");
        moving.open = [...moving.open, ...received];
        return true;
      },
    };
    if (moving.open.length > 0) this.#underWay.add(moving);
    return {
      advance: () => {
        try {
          this.#test(moving);
        } catch (error) {
          this.giveUp(moving);
          throw error;
        }
      },
      finish: () => this.finish(moving, "passing messages"),
    };
  }

  /** @throws {CollectiveError} if an end receives another length than its peer sends */
  #requireLengths(transfers: readonly Transfer[], lengths: Float64Array): void {
    for (const [index, { kind, byteLength, peer }] of transfers.entries()) {
      const sent = at(lengths, index, "length");
      if (kind === "send" || sent === byteLength) continue;
      const [from, to] = [this.control.worldRank(peer), this.control.worldRank(this.control.rank)];
      this.control.stop(`rank ${from} sends ${sent} bytes, but rank ${to} receives ${byteLength}`);
    }
  }

  /** Waits until messages are finished. @throws {CollectiveError} if a rank died, left, calls something else, or MPI fails */
  finish(moving: Moving, stage: string): void {
    let until: number | undefined;
    const look = (): boolean => {
      if (moving.failure !== undefined) return performance.now() > (until ??= performance.now() + EXPLAIN_MS);
      const end = performance.now() + this.lookMs;
      let isDone = this.#test(moving);
      while (!isDone && moving.failure === undefined && performance.now() < end) isDone = this.#test(moving);
      return isDone;
    };
    try {
      if (!look()) this.control.watch(look, stage);
      const { failure } = moving;
      if (failure !== undefined) this.control.stop(`MPI failed while it was ${stage}: ${describe(failure)}`);
    } catch (error) {
      this.giveUp(moving);
      throw error;
    } finally {
      this.#underWay.delete(moving);
    }
  }

  /**
   * Tests messages once, and keeps those that have not finished. It does nothing while another test is on: that test may run a kernel of
   * a reduction, and after a kernel messages are tested.
   *
   * @returns true if all are finished
   */
  #test(moving: Moving): boolean {
    if (this.#isTesting) return false;
    this.#isTesting = true;
    try {
      moving.open = moving.open.filter((message) => moving.failure !== undefined || !this.#hasEnded(message, moving));
      return moving.failure === undefined && (moving.begin?.() ?? true) && moving.open.length === 0;
    } catch (error) {
      if (!(error instanceof NativeError)) throw error;
      moving.failure = error;
      return false;
    } finally {
      this.#isTesting = false;
    }
  }

  /** True if a message has finished or failed. */
  #hasEnded({ request }: Begun, moving: Moving): boolean {
    try {
      return this.#mpi.requests.test(request);
    } catch (error) {
      if (!(error instanceof NativeError)) throw error;
      moving.failure = error;
      return true;
    }
  }

  /** Makes messages, and waits for them. */
  make(transfers: readonly Transfer[], stage: string, channel?: Channel): void {
    this.finish(this.begin(transfers, channel), stage);
  }

  #post({ isReceive, place, length, peer, channel }: PostedMessage): Begun {
    const { library: { symbols, handles: { MPI_BYTE } }, communicator, requests } = this.#mpi;
    const call = isReceive ? symbols.MPI_Irecv : symbols.MPI_Isend;
    const tag = this.#tag + CHANNELS.indexOf(channel);
    const to = this.control.worldRank(peer);
    const request = requests.begin((slot) => call(place, length, MPI_BYTE, to, tag, communicator, slot));
    return { request, isReceive };
  }

  /** Ends messages that nobody waits for any more, as after a failure: the memory may be used for something else. */
  giveUp(moving: Moving): void {
    this.#underWay.delete(moving);
    this.#mpi.hasFailed = true;
    const { open } = moving;
    moving.open = [];
    // Intel MPI's MPI_Cancel waits for ever for a peer that cannot be reached. Messages move in calls of MPI alone, and none follows.
    if (this.#mpi.isSilent()) return;
    for (const { request, isReceive } of open) {
      try {
        this.#mpi.requests.abandon(request, isReceive);
      } catch (error) {
        // A request of a rank that died may be gone already.
        if (!(error instanceof NativeError)) throw error;
      }
    }
  }
}

/** MPI's error without the addresses of the call. */
function describe({ call, message }: NativeError): string {
  const words = /failed with status (\d+: [^]*?)(?:: MPI_\w+\(.*\))?$/.exec(message)?.[1];
  return `${call}: ${words ?? message}`;
}
