/**
 * Copies of a group's blocks on one rank, between hosts. Each rank writes its own block. All changes between two
 * publications reach the others at once, so a copy shows the block as it was at some time, and never goes back.
 *
 * @module
 */
import { lazily } from "../lazily.ts";
import { FrameError } from "./frames.ts";

/** Granularity of changes, in bytes. */
export const LINE_BYTES = 64;
const LINE_WORDS = LINE_BYTES / 4;

/** Changed bytes of a block. */
export interface Change {
  readonly offset: number;
  readonly bytes: Uint8Array;
}

/** One rank's copies of a group's blocks. */
export class Replica {
  /** Id of the group in the world. */
  readonly id: string;
  readonly worldRanks: readonly number[];
  /** A member's block, whose memory is allocated at its first use. */
  readonly block: (index: number) => Uint8Array<ArrayBuffer>;
  readonly #words: Int32Array;
  /** This rank's block as last published. */
  readonly #known: Int32Array;
  readonly #isLocal: (word: number) => boolean;

  /**
   * @param rank index of this process among the members
   * @param isLocal true for words of a block, in whole lines, that are not published
   */
  constructor(
    { id, worldRanks, rank, byteLength }: Pick<Replica, "id" | "worldRanks"> & { rank: number; byteLength: number },
    isLocal: (word: number) => boolean = () => false,
  ) {
    this.id = id;
    this.worldRanks = worldRanks;
    const rounded = Math.ceil(byteLength / LINE_BYTES) * LINE_BYTES;
    this.block = lazily(() => new Uint8Array(rounded));
    this.#words = new Int32Array(this.block(rank).buffer);
    this.#known = new Int32Array(this.#words.length);
    this.#isLocal = isLocal;
  }

  /** Bytes of each block. */
  get byteLength(): number {
    return this.#words.byteLength;
  }

  /** Changes of this rank's block since the last call. */
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

  /** Applies changes of another rank's block. */
  apply(worldRank: number, offset: number, bytes: Uint8Array): void {
    const index = this.worldRanks[worldRank] === worldRank ? worldRank : this.worldRanks.indexOf(worldRank);
    const block = index < 0 ? undefined : this.block(index);
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
