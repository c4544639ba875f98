/**
 * Messages of MPI between the ranks of a group, from device memory to device memory. The host tests them in a wait of the control
 * plane, so that it ends when a rank dies, is late or calls something else.
 *
 * Note [Failed messages]: MPI's own error often comes before the control plane's, which says more: that a rank died, or that two
 * ranks named different lengths. So a rank whose message fails waits on for {@link EXPLAIN_MS}, and gives MPI's words only then.
 *
 * @module
 */
import type { DevicePtr } from "../../../device/device.ts";
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
/** Time that a rank tests messages before it looks at the control plane. */
const LOOK_MS = 0.2;
const EXPLAIN_MS = 2000;

/** A kind of messages of a group. They are matched apart from the others, and in order. */
type Channel = "collective" | "transfer";

/** Messages under way. */
export interface Moving {
  open: readonly { readonly request: NativeAddress; readonly isReceive: boolean }[];
}

/** The messages of a group. */
export class Moves {
  readonly control: HostsControlPlane;
  readonly #mpi: MpiProcess;
  readonly #pages: DevicePages;
  readonly #tag: number;

  /** Takes tags that no other group of its ranks has. Collective. */
  constructor(control: HostsControlPlane, mpi: MpiProcess, pages: DevicePages) {
    this.control = control;
    this.#mpi = mpi;
    this.#pages = pages;
    const tags = control.exchange(new Uint8Array(Int32Array.of(mpi.nextTag).buffer))
      .map((bytes) => at(new Int32Array(bytes.slice().buffer), 0, "tag"));
    this.#tag = Math.max(...tags);
    mpi.nextTag = this.#tag + 2;
    if (mpi.nextTag > MPI_LEAST_TAG_UB) {
      throw new UnsupportedError(
        `Cannot make a group: ranks have made ${
          (MPI_LEAST_TAG_UB - 1) / 2
        }, for which MPI has numbers; make groups once`,
      );
    }
  }

  /** Begins messages. Memory must not be used until they are finished. */
  begin(transfers: readonly Transfer[], channel: Channel = "collective"): Moving {
    const { requests } = this.#mpi;
    const open: { request: NativeAddress; isReceive: boolean }[] = [];
    const moving: Moving = { open };
    const tag = this.#tag + (channel === "collective" ? 0 : 1);
    for (const { kind, ptr, byteLength, peer } of transfers) {
      const isReceive = kind === "receive";
      for (let start = 0; start < byteLength; start += PIECE_BYTES) {
        const length = Math.min(PIECE_BYTES, byteLength - start);
        const from = devicePtr(ptr + start);
        open.push({
          request: requests.begin((slot) => this.#post(isReceive, from, length, peer, tag, slot)),
          isReceive,
        });
      }
    }
    return moving;
  }

  /** Waits until messages are finished. @throws {CollectiveError} if a rank died, left, calls something else, or MPI fails */
  finish(moving: Moving, stage: string): void {
    const { requests } = this.#mpi;
    let failed: { readonly error: NativeError; readonly until: number } | undefined;
    const look = (): boolean => {
      if (failed !== undefined) return performance.now() > failed.until;
      const end = performance.now() + LOOK_MS;
      do {
        const still: Moving["open"][number][] = [];
        for (const one of moving.open) {
          try {
            if (failed !== undefined || !requests.test(one.request)) still.push(one);
          } catch (error) {
            if (!(error instanceof NativeError)) throw error;
            failed = { error, until: performance.now() + EXPLAIN_MS };
          }
        }
        moving.open = still;
      } while (moving.open.length > 0 && failed === undefined && performance.now() < end);
      return moving.open.length === 0 && failed === undefined;
    };
    try {
      if (!look()) this.control.watch(look, stage);
      if (failed !== undefined) this.control.stop(`MPI failed while it was ${stage}: ${describe(failed.error)}`);
    } catch (error) {
      this.#giveUp(moving);
      throw error;
    }
  }

  /** Makes messages, and waits for them. */
  make(transfers: readonly Transfer[], stage: string, channel?: Channel): void {
    this.finish(this.begin(transfers, channel), stage);
  }

  #post(isReceive: boolean, ptr: DevicePtr, length: number, peer: number, tag: number, slot: NativeAddress): void {
    const { library: { symbols, handles: { MPI_BYTE } }, communicator } = this.#mpi;
    const call = isReceive ? symbols.MPI_Irecv : symbols.MPI_Isend;
    call(this.#pages.native(ptr), length, MPI_BYTE, this.control.worldRank(peer), tag, communicator, slot);
  }

  /** After a failure nobody receives what is under way: the memory may be used for something else. */
  #giveUp(moving: Moving): void {
    this.#mpi.hasFailed = true;
    for (const { request, isReceive } of moving.open) {
      try {
        this.#mpi.requests.abandon(request, isReceive);
      } catch (error) {
        // A request of a rank that died may be gone already.
        if (!(error instanceof NativeError)) throw error;
      }
    }
    moving.open = [];
  }
}

/** MPI's error without the addresses of the call. */
function describe({ call, message }: NativeError): string {
  const words = /failed with status (\d+: [^]*?)(?:: MPI_\w+\(.*\))?$/.exec(message)?.[1];
  return `${call}: ${words ?? message}`;
}
