/**
 * Messages round a ring: each rank sends to the next one and receives from the one before, while it computes.
 *
 * Note [In flight] A shard is sent from the memory in which it was received, or from the rank's own; it is only read meanwhile. The next
 * shard is received into memory that the present computation does not use. The messages of one step are under way at a time.
 *
 * @module
 */
import type { Transfer, Work } from "../comm/data_plane.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import type { Device } from "../device/device.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { unwind } from "../unwind.ts";

/** Messages to the next rank of an axis, and from the one before. */
export class RingMessages implements Disposable {
  readonly #device: Device;
  readonly #group: ProcessGroup;
  readonly #unit: string;
  #underWay: Work | undefined;

  /** @param unit what is sent, for messages */
  constructor(device: Device, group: ProcessGroup, unit: string) {
    this.#device = device;
    this.#group = group;
    this.#unit = unit;
  }

  /** Begins to send dense tensors to the next rank, and to receive as many of the same sizes from the one before. */
  begin(sent: readonly Tensor[], received: readonly Tensor[]): void {
    const { rank, size } = this.#group;
    const messages = (kind: Transfer["kind"], peer: number, tensors: readonly Tensor[]): readonly Transfer[] =>
      tensors.map(({ ptr, numel, dtype }) => ({ kind, peer, ptr, byteLength: numel * dtype.byteLength }));
    const transfers = [
      ...messages("send", (rank + 1) % size, sent),
      ...messages("receive", (rank + size - 1) % size, received),
    ];
    if (transfers.length === 0) return;
    const { streams } = this.#device;
    // What is sent was computed before, and what is overwritten was read before.
    streams.get("gather").wait(streams.current.record());
    this.#underWay = streams.on("gather", () => this.#group.transfer(transfers, this.#unit));
  }

  /** Moves messages on without waiting. Called between kernels. */
  advance(): void {
    this.#underWay?.advance?.();
  }

  /** Orders later work after the messages under way. */
  finish(): void {
    this.#underWay?.wait();
    this.#underWay = undefined;
  }

  /** After a failure: ends messages under way before their memory is freed. */
  [Symbol.dispose](): void {
    unwind([() => this.finish()]);
  }
}

/** Shards that go round: at each step the present one, while the next is under way. */
export class RingShards {
  readonly #messages: RingMessages;
  readonly #buffers: readonly (readonly Tensor[])[];
  #present: readonly Tensor[];
  #next: readonly Tensor[] | undefined;
  #step = 0;

  /** @param own this rank's shard @param buffers memory for shards of others: 1 for two ranks, else 2; none for one */
  constructor(messages: RingMessages, own: readonly Tensor[], buffers: readonly (readonly Tensor[])[]) {
    this.#messages = messages;
    this.#buffers = buffers;
    this.#present = own;
  }

  /** The present shard. */
  get present(): readonly Tensor[] {
    return this.#present;
  }

  /**
   * Begins to pass the present shard on and to receive the next one, along with other messages.
   *
   * @param isLast true if there is no next one
   */
  begin(isLast: boolean, sent: readonly Tensor[] = [], received: readonly Tensor[] = []): void {
    this.#next = isLast ? undefined : this.#buffers[this.#step % this.#buffers.length];
    const next = this.#next ?? [];
    this.#messages.begin([...next.length === 0 ? [] : this.#present, ...sent], [...next, ...received]);
  }

  /** Waits for the next shard, which becomes the present one. */
  finish(): void {
    this.#messages.finish();
    this.#step++;
    if (this.#next !== undefined) this.#present = this.#next;
  }
}
