/**
 * The control plane between processes of several hosts. It works as on one host, but each rank has copies of the others'
 * blocks, which the store keeps up to date. A rank whose stream to the store has ended is dead.
 *
 * Note [Published calls]
 * 1. A rank writes each call to its own block. It publishes the block when it waits, else after {@link CALLS_TOGETHER} calls
 *   or {@link PUBLISH_MS}.
 * 2. The store sends the changes to the rank's neighbours in the tree (`tree.ts`), which compare the calls with their own:
 *   if all neighbours agree, all ranks agree.
 * 3. Of other ranks, a rank hears only that they died or left. It asks the store for their calls to explain a difference or
 *   a late or dead rank, and for a flight record.
 *
 * So a call costs at most 2 (ranks - 1) updates, and a barrier a few times as many.
 *
 * @module
 */
import type { BlockMemory } from "../control/block_memory.ts";
import type { ControlPlane, Place } from "../control_plane.ts";
import {
  BLOCK_BYTES,
  BLOCK_HEAD_BYTES,
  MAILBOX_BEGIN,
  SharedControlPlane,
  SLEEP_WORDS,
  type World,
} from "../control/shared.ts";
import { at } from "../../at.ts";
import { lazily } from "../lazily.ts";
import type { ShareParts } from "../rank_parts.ts";
import type { StoreLink } from "./link.ts";
import { Replica } from "./replica.ts";
import { treePlace } from "./tree.ts";
import { TREE_HEAD_BYTES, TREE_MAILBOX_BYTES, TreeExchange } from "./tree_exchange.ts";

const CALLS_TOGETHER = 16;
/** A call that comes this long after the last publication is published at once. */
const PUBLISH_MS = 10;
/** Longest time that a rank asks for others' calls before it reports that they have not made a call. */
const REFRESH_MS = 100;

/** State that all groups of a rank share. */
export interface HostsWorld extends World {
  /** Ranks of the world on each host; their numbers are consecutive. */
  readonly ranksPerHost: number;
}

/** Opens the blocks of a group. */
function blocksOf(
  link: StoreLink,
  { name, rank, worldRanks }: Place,
  { ranksPerHost }: HostsWorld,
  leave: (replica: Replica) => void,
): BlockMemory {
  const isLocal = (word: number): boolean => word >= SLEEP_WORDS.begin && word < SLEEP_WORDS.end;
  const replica = new Replica({ id: link.idOf(name, worldRanks), worldRanks, rank, byteLength: BLOCK_BYTES }, isLocal);
  const place = treePlace(worldRanks, ranksPerHost, rank);
  const ranks = [...place.parent === undefined ? [] : [place.parent], ...place.children];
  link.open(replica, ranks.map((peer) => at(worldRanks, peer, "world rank of rank")), BLOCK_HEAD_BYTES);
  // A remote rank may sleep at any time, so the bell counts as having a sleeper: each change is published.
  const blockOf = lazily((index): Uint8Array => {
    const block = replica.block(index);
    new Int32Array(block.buffer)[SLEEP_WORDS.sleepers] = 1;
    return block;
  });
  let [calls, publishedAt] = [0, 0];
  const publish = (): void => {
    link.publish(replica);
    [calls, publishedAt] = [0, performance.now()];
  };
  const mailboxOf = (index: number): Uint8Array =>
    blockOf(index).subarray(MAILBOX_BEGIN, MAILBOX_BEGIN + TREE_MAILBOX_BYTES);
  const tree = new TreeExchange({ rank, size: worldRanks.length, place }, mailboxOf, publish);
  return {
    block: blockOf,
    sleep: (_rank, _word, _expected, timeoutMs) => {
      publish();
      link.pump(timeoutMs);
      link.look();
    },
    wake: () => {
      publish();
      link.pump(0);
    },
    leave: () => leave(replica),
    followed: {
      ranks,
      refresh: (isEnough = () => true) => {
        const end = performance.now() + REFRESH_MS;
        for (;;) {
          const isDone = link.ask(replica, MAILBOX_BEGIN + TREE_HEAD_BYTES);
          if (!isDone || isEnough() || performance.now() > end) return isDone;
          link.pump(PUBLISH_MS);
        }
      },
      announced: () => {
        if (++calls < CALLS_TOGETHER && performance.now() - publishedAt < PUBLISH_MS) return;
        publish();
        link.pump(0);
      },
      exchange: (control, bytes) => finish(control, tree.steps(bytes), publish),
      behind: () => tree.behind(),
    },
  };
}

/** Waits for each step of an exchange in turn; then publishes that the rank has stopped waiting. */
function finish(
  control: ControlPlane,
  steps: ReturnType<TreeExchange["steps"]>,
  publish: () => void,
): readonly Uint8Array[] {
  let hasWaited = false;
  for (let step = steps.next();; step = steps.next()) {
    if (step.done === true) {
      if (hasWaited) publish();
      return step.value;
    }
    const { rank, ready } = step.value;
    if (ready()) continue;
    control.wait(ready, "its contribution", rank);
    hasWaited = true;
  }
}

export class HostsControlPlane extends SharedControlPlane {
  readonly share: ShareParts;
  readonly #link: StoreLink;
  readonly #hosts: HostsWorld;

  /** @param leave called when this rank leaves the group */
  constructor(
    link: StoreLink,
    place: Place,
    world: HostsWorld,
    timeoutSeconds: number | undefined,
    leave: (replica: Replica) => void = (replica) => link.leave(replica),
  ) {
    super(place, blocksOf(link, place, world, leave), world, timeoutSeconds);
    this.#link = link;
    this.#hosts = world;
    this.share = shareOver(link);
  }

  /** A peer's calls arrive with its contribution, and not earlier: two ranks that differ may both have announced before. */
  override wait(ready: () => boolean, stage: string, awaited?: number | readonly number[]): void {
    super.wait(ready, stage, awaited);
    this.#link.look();
    this.compareCalls();
  }

  override watch(ready: () => boolean, stage: string): void {
    super.watch(ready, stage);
    // What a device still does after ranks have stopped is waited for without a second error.
    if (this.stopped) return;
    this.#link.look();
    this.compareCalls();
  }

  /** Looks once whether all ranks are there. Never waits. @throws {CollectiveError} if a rank has died, or stopped all */
  requireAll(stage: string): void {
    this.#link.look();
    const dead = this.worldRanks.find((rank) => this.world.deathOf(rank) !== undefined);
    if (dead !== undefined && !this.stopped) {
      this.stop(`rank ${dead} ${this.world.deathOf(dead)} while this rank waited for ${stage}`, dead);
    }
    if (this.stopped) super.watch(() => false, stage);
  }

  /** True once ranks of another host cannot be reached any more. */
  get isCutOff(): boolean {
    return this.#link.isCutOff;
  }

  /** True if a rank has stopped all because others were late: they may be on a host that is stopped. */
  get isLate(): boolean {
    return this.#link.abort.isLate;
  }

  /** The state of the world, for planes of some ranks. */
  hostWorld(): World {
    return this.#hosts;
  }

  split(ranks: readonly number[], name: string): HostsControlPlane {
    this.agreeOnSplit(ranks);
    return new HostsControlPlane(this.#link, this.placeIn(ranks, name), this.#hosts, this.timeoutSeconds);
  }
}

/** Makes shared parts for the ranks of several hosts. */
function shareOver(link: StoreLink): ShareParts {
  return ({ name, rank, worldRanks }, byteLength, owner) => {
    const id = link.idOf(`${name}: ${owner}`, worldRanks);
    const replica = new Replica({ id, worldRanks, rank, byteLength });
    const followed = new Set<number>();
    link.open(replica);
    return {
      parts: worldRanks.map((_, index) => replica.block(index)),
      publish: () => link.publish(replica),
      follow: (peer) => {
        if (followed.has(peer)) return;
        followed.add(peer);
        link.follow(replica, at(worldRanks, peer, "world rank of rank"));
      },
      onChange: (look) => void link.looks.set(replica.id, look),
      [Symbol.dispose]: () => {
        link.looks.delete(replica.id);
        link.leave(replica);
      },
    };
  };
}
