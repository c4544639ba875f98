/**
 * What the store keeps of a group: the newest contents of each rank's block, and when each line of it has changed last.
 *
 * @module
 */
import { FrameError } from "./frames.ts";
import { type Change, LINE_BYTES } from "./replica.ts";

/** The block of one rank in one group. */
export class StoredBlock {
  /** The group's id, as frames have it. */
  readonly group: Uint8Array;
  /** World rank of its owner. */
  readonly rank: number;
  readonly #bytes: Uint8Array;
  /** For each line, the number of its last change; 0 before the first. */
  readonly #times: Float64Array;

  constructor(group: Uint8Array, rank: number, byteLength: number) {
    this.group = group;
    this.rank = rank;
    this.#bytes = new Uint8Array(byteLength);
    this.#times = new Float64Array(Math.ceil(byteLength / LINE_BYTES));
  }

  /** Takes a change. */
  change(time: number, offset: number, bytes: Uint8Array): void {
    if (offset + bytes.length > this.#bytes.length) {
      throw new FrameError(`an update beyond the end of a block, at ${offset}`);
    }
    this.#bytes.set(bytes, offset);
    this.#times.fill(time, Math.floor(offset / LINE_BYTES), Math.ceil((offset + bytes.length) / LINE_BYTES));
  }

  /** What has changed after the change of that number. */
  since(time: number): readonly Change[] {
    const changes: Change[] = [];
    const times = this.#times;
    const isNew = (line: number): boolean => line < times.length && (times[line] ?? 0) > time;
    for (let line = 0; line < times.length; line++) {
      if (!isNew(line)) continue;
      const begin = line;
      while (isNew(line + 1)) line++;
      const offset = begin * LINE_BYTES;
      changes.push({ offset, bytes: this.#bytes.subarray(offset, (line + 1) * LINE_BYTES) });
    }
    return changes;
  }
}

/** The blocks of a group, and who is in it. */
export class StoredGroup {
  /** Members that have opened it and not left. */
  readonly openedBy: Set<number> = new Set();
  readonly blocks: readonly StoredBlock[];
  readonly #worldRanks: readonly number[];
  readonly #blockBytes: number;
  /** Members that will not come any more. */
  readonly #left = new Set<number>();

  constructor(id: string, worldRanks: readonly number[], blockBytes: number) {
    this.#worldRanks = worldRanks;
    this.#blockBytes = blockBytes;
    this.blocks = worldRanks.map((rank) => new StoredBlock(Uint8Array.fromHex(id), rank, blockBytes));
  }

  /** Bytes of all blocks. */
  get byteLength(): number {
    return this.#blockBytes * this.blocks.length;
  }

  /** Whether these are its members and bytes. */
  isFor(worldRanks: readonly number[], blockBytes: number): boolean {
    return blockBytes === this.#blockBytes && worldRanks.join() === this.#worldRanks.join();
  }

  /** A member begins its part; gives the other members' blocks. */
  open(rank: number): readonly StoredBlock[] {
    this.openedBy.add(rank);
    return this.blocks.filter((block) => block.rank !== rank);
  }

  /** The block of a member that has opened it. */
  blockOf(rank: number): StoredBlock | undefined {
    return this.openedBy.has(rank) ? this.blocks.find((block) => block.rank === rank) : undefined;
  }

  /** A member ends its part, or has died; whether nobody is left. */
  leave(rank: number): boolean {
    if (!this.#worldRanks.includes(rank)) return false;
    this.openedBy.delete(rank);
    this.#left.add(rank);
    return this.#left.size === this.#worldRanks.length;
  }
}
