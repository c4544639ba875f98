/**
 * The control plane between processes of several hosts: the same as inside one, over blocks that follow each other by way
 * of the store. A rank that died is one whose stream to the store has ended.
 *
 * @module
 */
import type { Place } from "../control_plane.ts";
import { BLOCK_BYTES, type BlockMemory, SharedControlPlane, SLEEP_WORDS, type World } from "../control/shared.ts";
import type { ShareParts } from "../rank_parts.ts";
import type { StoreLink } from "./link.ts";
import { Replica } from "./replica.ts";

/** The blocks of a group. */
function blocksOf(link: StoreLink, { name, rank, worldRanks }: Place, leave: (replica: Replica) => void): BlockMemory {
  const isLocal = (word: number): boolean => word >= SLEEP_WORDS.begin && word < SLEEP_WORDS.end;
  const replica = new Replica({ id: link.idOf(name, worldRanks), worldRanks, rank, byteLength: BLOCK_BYTES }, isLocal);
  link.open(replica);
  // Somebody far away may always be asleep: whatever changes is published.
  for (const block of replica.blocks) new Int32Array(block.buffer)[SLEEP_WORDS.sleepers] = 1;
  return {
    blocks: replica.blocks,
    sleep: (_rank, _word, _expected, timeoutMs) => {
      link.publish(replica);
      link.pump(timeoutMs);
      link.look();
    },
    wake: () => {
      link.publish(replica);
      link.pump(0);
    },
    leave: () => leave(replica),
  };
}

/** The ranks of a group that are processes of several hosts. */
export class HostsControlPlane extends SharedControlPlane {
  readonly share: ShareParts;
  readonly #link: StoreLink;

  /** @param leave what is done when this rank leaves the group */
  constructor(
    link: StoreLink,
    place: Place,
    world: World,
    timeoutSeconds: number | undefined,
    leave: (replica: Replica) => void = (replica) => link.leave(replica),
  ) {
    super(place, blocksOf(link, place, leave), world, timeoutSeconds);
    this.#link = link;
    this.share = shareOver(link);
  }

  /**
   * What a rank has called comes with what it contributes, and no earlier: two ranks that differ may both have announced
   * before they heard of each other.
   */
  override wait(ready: () => boolean, stage: string, awaited?: number | readonly number[]): void {
    super.wait(ready, stage, awaited);
    this.#link.look();
    this.compareCalls();
  }

  split(ranks: readonly number[], name: string): HostsControlPlane {
    this.agreeOnSplit(ranks);
    return new HostsControlPlane(this.#link, this.placeIn(ranks, name), this.world, this.timeoutSeconds);
  }
}

/** What shares memory between ranks of several hosts. */
export function shareOver(link: StoreLink): ShareParts {
  return ({ name, rank, worldRanks }, byteLength, owner) => {
    const id = link.idOf(`${name}: ${owner}`, worldRanks);
    const replica = new Replica({ id, worldRanks, rank, byteLength });
    link.open(replica);
    return {
      parts: replica.blocks,
      publish: () => link.publish(replica),
      onChange: (look) => void link.looks.set(replica.id, look),
      [Symbol.dispose]: () => {
        link.looks.delete(replica.id);
        link.leave(replica);
      },
    };
  };
}
