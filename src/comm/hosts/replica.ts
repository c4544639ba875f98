/**
 * Blocks of memory that ranks of several hosts have in common, as far as they can: each rank writes its own block, and has
 * a copy of every other's, which follows it. What a rank has changed when it publishes reaches the others as one piece, so
 * a copy shows the block as it was at some time, and never goes back.
 *
 * @module
 */
import { at } from "../../at.ts";
import { FrameError } from "./frames.ts";

/** Bytes by which changes are looked for. */
export const LINE_BYTES = 64;
const LINE_WORDS = LINE_BYTES / 4;

/** Bytes of a block that have changed. */
export interface Change {
  readonly offset: number;
  readonly bytes: Uint8Array;
}

/** The blocks of a group, as one rank has them. */
export class Replica {
  /** Name of the group among all of the world. */
  readonly id: string;
  /** World ranks of the members. */
  readonly worldRanks: readonly number[];
  /** Each member's block. */
  readonly blocks: readonly Uint8Array<ArrayBuffer>[];
  readonly #words: Int32Array;
  /** The own block as the others know it. */
  readonly #known: Int32Array;
  readonly #isLocal: (word: number) => boolean;

  /**
   * @param rank which of the members this process is
   * @param isLocal which words of a block, in whole lines, are not for others
   */
  constructor(
    { id, worldRanks, rank, byteLength }: Pick<Replica, "id" | "worldRanks"> & { rank: number; byteLength: number },
    isLocal: (word: number) => boolean = () => false,
  ) {
    this.id = id;
    this.worldRanks = worldRanks;
    const rounded = Math.ceil(byteLength / LINE_BYTES) * LINE_BYTES;
    this.blocks = worldRanks.map(() => new Uint8Array(rounded));
    this.#words = new Int32Array(at(this.blocks, rank, "block of rank").buffer);
    this.#known = new Int32Array(this.#words.length);
    this.#isLocal = isLocal;
  }

  /** Bytes of each block. */
  get byteLength(): number {
    return this.#words.byteLength;
  }

  /** What has changed of the own block since the last call. */
  changes(): readonly Change[] {
    const [words, known] = [this.#words, this.#known];
    const found: Change[] = [];
    for (let begin = 0; begin < words.length; begin += LINE_WORDS) {
      if (!this.#differs(begin)) continue;
      let end = begin + LINE_WORDS;
      while (end < words.length && this.#differs(end)) end += LINE_WORDS;
      known.set(words.subarray(begin, end), begin);
      found.push({ offset: begin * 4, bytes: new Uint8Array(words.buffer, begin * 4, (end - begin) * 4) });
      begin = end;
    }
    return found;
  }

  /** Takes what has changed of another's block. */
  apply(worldRank: number, offset: number, bytes: Uint8Array): void {
    const block = this.blocks[this.worldRanks.indexOf(worldRank)];
    if (block === undefined) throw new FrameError(`an update of rank ${worldRank}, which is not in group ${this.id}`);
    if (offset + bytes.length > block.length) throw new FrameError(`an update beyond the end of a block, at ${offset}`);
    block.set(bytes, offset);
  }

  #differs(begin: number): boolean {
    if (this.#isLocal(begin)) return false;
    for (let i = begin; i < begin + LINE_WORDS; i++) if (this.#words[i] !== this.#known[i]) return true;
    return false;
  }
}
