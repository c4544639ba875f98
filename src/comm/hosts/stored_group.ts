/**
 * A group in the store: the newest contents of each rank's block, and the time of each line's last change.
 *
 * @module
 */
import { FrameError } from "./frames.ts";
import { type Change, LINE_BYTES } from "./replica.ts";

/** Estimated bytes of the store for each block, besides its contents. */
const BLOCK_OVERHEAD = 4096;

export class StoredBlock {
  /** Id of the group, as in frames. */
  readonly group: Uint8Array;
  /** World rank of its owner. */
  readonly rank: number;
  /** World ranks that receive every change. */
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

  change(time: number, offset: number, bytes: Uint8Array): void {
    if (offset + bytes.length > this.#bytes.length) {
      throw new FrameError(`an update beyond the end of a block, at ${offset}`);
    }
    this.#bytes.set(bytes, offset);
    this.#times.fill(time, Math.floor(offset / LINE_BYTES), Math.ceil((offset + bytes.length) / LINE_BYTES));
  }

  /** Changes after the change of number `time`, in the first `byteLength` bytes if given. */
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

export interface GroupShape {
  readonly worldRanks: readonly number[];
  /** Bytes of each member's block. */
  readonly blockBytes: number;
  /** First bytes of a block that every member receives when its owner leaves. */
  readonly headBytes: number;
}

export class StoredGroup {
  /** Members that have opened the group and not left it. */
  readonly openedBy: Set<number> = new Set();
  readonly blocks: readonly StoredBlock[];
  readonly headBytes: number;
  readonly #shape: GroupShape;
  readonly #byRank: ReadonlyMap<number, StoredBlock>;
  /** Members that have left or died. */
  readonly #left = new Set<number>();

  constructor(id: string, shape: GroupShape) {
    const { worldRanks, blockBytes, headBytes } = shape;
    this.#shape = shape;
    this.headBytes = headBytes;
    this.blocks = worldRanks.map((rank) => new StoredBlock(Uint8Array.fromHex(id), rank, blockBytes));
    this.#byRank = new Map(this.blocks.map((block) => [block.rank, block]));
  }

  /** Bytes that a group of this shape takes in the store. */
  static byteLengthOf({ worldRanks, blockBytes }: GroupShape): number {
    return worldRanks.length * (blockBytes + BLOCK_OVERHEAD);
  }

  /** Bytes that the group takes in the store. */
  get byteLength(): number {
    return StoredGroup.byteLengthOf(this.#shape);
  }

  /** True if a member gives the same shape as those before. */
  isOf({ worldRanks, blockBytes, headBytes }: GroupShape): boolean {
    const shape = this.#shape;
    return blockBytes === shape.blockBytes && headBytes === shape.headBytes &&
      worldRanks.length === shape.worldRanks.length && worldRanks.every((rank, i) => rank === shape.worldRanks[i]);
  }

  /** Begins a member's part. */
  open(rank: number): void {
    this.openedBy.add(rank);
  }

  /** From now on a member receives the blocks of `others`; returns these blocks. */
  follow(rank: number, others: readonly number[]): readonly StoredBlock[] {
    const followed = others.map((other) => {
      const block = this.#byRank.get(other);
      if (block === undefined || other === rank) throw new FrameError(`that it follows rank ${other} in a group`);
      return block;
    });
    for (const block of followed) block.followers.add(rank);
    return followed;
  }

  /** The block of a member that has opened the group. */
  blockOf(rank: number): StoredBlock | undefined {
    return this.openedBy.has(rank) ? this.#byRank.get(rank) : undefined;
  }

  /** Ends a member's part, also if it died; true if no member is left. */
  leave(rank: number): boolean {
    if (!this.#byRank.has(rank)) return false;
    this.openedBy.delete(rank);
    this.#left.add(rank);
    for (const block of this.blocks) block.followers.delete(rank);
    return this.#left.size === this.#shape.worldRanks.length;
  }
}
