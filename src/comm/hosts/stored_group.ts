/**
 * What the store keeps of a group: the newest contents of each rank's block, and when each line of it has changed last.
 *
 * @module
 */
import { FrameError } from "./frames.ts";
import { type Change, LINE_BYTES } from "./replica.ts";

/** Bytes that the store is taken to need for each block besides its contents. */
const BLOCK_OVERHEAD = 4096;

/** The block of one rank in one group. */
export class StoredBlock {
  /** The group's id, as frames have it. */
  readonly group: Uint8Array;
  /** World rank of its owner. */
  readonly rank: number;
  /** World ranks that are sent every change. */
  readonly followers: Set<number> = new Set();
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

  /** What has changed after the change of that number; of the first bytes, if a number of them is given. */
  since(time: number, byteLength: number = this.#bytes.length): readonly Change[] {
    const changes: Change[] = [];
    const times = this.#times.subarray(0, Math.ceil(byteLength / LINE_BYTES));
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

/** What all members of a group say of it. */
export interface GroupShape {
  /** World ranks of the members, ascending. */
  readonly worldRanks: readonly number[];
  /** Bytes of each member's block. */
  readonly blockBytes: number;
  /** First bytes of a block that every member is sent when its owner leaves. */
  readonly headBytes: number;
}

/** The blocks of a group, and who is in it. */
export class StoredGroup {
  /** Members that have opened it and not left. */
  readonly openedBy: Set<number> = new Set();
  readonly blocks: readonly StoredBlock[];
  readonly headBytes: number;
  readonly #shape: GroupShape;
  readonly #byRank: ReadonlyMap<number, StoredBlock>;
  /** Members that will not come any more. */
  readonly #left = new Set<number>();

  constructor(id: string, shape: GroupShape) {
    const { worldRanks, blockBytes, headBytes } = shape;
    this.#shape = shape;
    this.headBytes = headBytes;
    this.blocks = worldRanks.map((rank) => new StoredBlock(Uint8Array.fromHex(id), rank, blockBytes));
    this.#byRank = new Map(this.blocks.map((block) => [block.rank, block]));
  }

  /** Bytes that a group takes, with what is kept of each block. */
  static byteLengthOf({ worldRanks, blockBytes }: GroupShape): number {
    return worldRanks.length * (blockBytes + BLOCK_OVERHEAD);
  }

  /** Bytes that it takes. */
  get byteLength(): number {
    return StoredGroup.byteLengthOf(this.#shape);
  }

  /** Whether a member says the same of it as those before. */
  isOf({ worldRanks, blockBytes, headBytes }: GroupShape): boolean {
    const shape = this.#shape;
    return blockBytes === shape.blockBytes && headBytes === shape.headBytes &&
      worldRanks.join() === shape.worldRanks.join();
  }

  /** A member begins its part. */
  open(rank: number): void {
    this.openedBy.add(rank);
  }

  /** A member is to be sent the blocks of others, from now on; gives these blocks. */
  follow(rank: number, others: readonly number[]): readonly StoredBlock[] {
    const followed = others.map((other) => {
      const block = this.#byRank.get(other);
      if (block === undefined || other === rank) throw new FrameError(`that it follows rank ${other} in a group`);
      return block;
    });
    for (const block of followed) block.followers.add(rank);
    return followed;
  }

  /** The block of a member that has opened it. */
  blockOf(rank: number): StoredBlock | undefined {
    return this.openedBy.has(rank) ? this.#byRank.get(rank) : undefined;
  }

  /** A member ends its part, or has died; whether nobody is left. */
  leave(rank: number): boolean {
    if (!this.#byRank.has(rank)) return false;
    this.openedBy.delete(rank);
    this.#left.add(rank);
    for (const block of this.blocks) block.followers.delete(rank);
    return this.#left.size === this.#shape.worldRanks.length;
  }
}
