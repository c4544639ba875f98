/**
 * The control plane of many ranks in one process: each has its own stream to one store, whose Worker is real.
 *
 * @module
 */
import process from "node:process";
import { BLOCK_BYTES } from "../../src/comm/control/shared.ts";
import { Replica } from "../../src/comm/hosts/replica.ts";
import { StoredGroup } from "../../src/comm/hosts/stored_group.ts";
import { type TreePlace, treePlaces } from "../../src/comm/hosts/tree.ts";
import { type Awaited, TREE_MAILBOX_BYTES, TreeExchange } from "../../src/comm/hosts/tree_exchange.ts";
import { float32 } from "../../src/dtype.ts";
import { blockFor } from "../../src/runtime/clock.ts";
import { at } from "../../src/at.ts";
import { type HostsWorldOfOne, openHostsWorld } from "../../tests/support/hosts_world.ts";
import { freePorts } from "../../tests/support/world.ts";

/** What a world of some ranks took; times in milliseconds, counts over all ranks. */
export interface ControlFigures {
  /** Until all ranks have joined and opened the group of all. */
  readonly start_ms: number;
  /** A barrier: its time, and the updates that ranks sent and received. */
  readonly agreement_ms: number;
  readonly agreement_sent: number;
  readonly agreement_received: number;
  /** Bytes that the store keeps for the group of all ranks. */
  readonly store_bytes: number;
  /** Memory of the process that holds the store and all ranks, after a step. */
  readonly process_bytes: number;
  /** Updates of a step whose calls all ranks announce, sent and received. */
  readonly step_sent: number;
  readonly step_received: number;
}

/** Time between two calls of a step. */
const CALL_MS = 12;

/** Joins ranks, lets them agree and announce the calls of a step. They do not leave: the process ends. */
export async function measureControl(size: number, ranksPerHost: number, calls: number): Promise<ControlFigures> {
  const started = performance.now();
  const world = await openHostsWorld(size, ranksPerHost, freePorts());
  const planes = Array.from({ length: size }, (_, rank) => world.plane(rank));
  world.deliverAll(20);
  const start_ms = performance.now() - started;
  const barrier = openBarrier(world, size, ranksPerHost);
  barrier();
  world.deliverAll(20);
  world.reset();
  const begun = performance.now();
  barrier();
  const agreement_ms = performance.now() - begun;
  world.deliverAll(20);
  const [agreement_sent, agreement_received] = updatesOf(world);

  world.reset();
  for (let sequence = 1; sequence <= calls; sequence++) {
    // Calls of a step are further apart than the time in which a rank publishes several together.
    blockFor(CALL_MS);
    for (const plane of planes) {
      const call = { kind: "gather", unit: `layers.${sequence}`, phase: "forward", dtype: float32 } as const;
      plane.announce({ ...call, count: 64, detail: 0, step: 1, sequence });
    }
  }
  world.deliverAll(50);
  const [step_sent, step_received] = updatesOf(world);
  const process_bytes = process.memoryUsage().rss;
  const worldRanks = Array.from({ length: size }, (_, rank) => rank);
  return {
    ...{ start_ms, agreement_ms, agreement_sent, agreement_received, process_bytes, step_sent, step_received },
    store_bytes: StoredGroup.byteLengthOf({ worldRanks, blockBytes: BLOCK_BYTES, headBytes: 0 }),
  };
}

function updatesOf({ counts }: HostsWorldOfOne): readonly [number, number] {
  return [counts.sent.get("update") ?? 0, counts.received.get("update") ?? 0];
}

/** Begins a group of all ranks, whose exchanges run in turn; returns a function that makes a barrier. */
function openBarrier({ links }: HostsWorldOfOne, size: number, ranksPerHost: number): () => void {
  const worldRanks = Array.from({ length: size }, (_, rank) => rank);
  const exchanges = treePlaces(worldRanks, ranksPerHost).map((place, rank) => {
    const replica = new Replica({ id: "5ca1e".padEnd(16, "0"), worldRanks, rank, byteLength: TREE_MAILBOX_BYTES });
    const link = at(links, rank, "link of rank");
    link.open(replica, neighboursOf(place));
    return { link, tree: new TreeExchange({ rank, size, place }, replica.block, () => link.publish(replica)) };
  });
  return () => {
    const running = exchanges.map(({ tree }) => tree.steps(new Uint8Array()));
    let ends = 0;
    // What a rank waits for; undefined once it has ended. Its results are dropped, as each has one of every rank.
    const next = (rank: number): Awaited | undefined => {
      const step = at(running, rank, "exchange of rank").next();
      if (step.done !== true) return step.value;
      if (step.value.length === size) ends++;
      return undefined;
    };
    const waits = exchanges.map((_, rank) => next(rank));
    for (let open = size; open > 0;) {
      open = 0;
      for (const [rank, { link }] of exchanges.entries()) {
        const wait = waits[rank];
        if (wait === undefined) continue;
        link.pump(0);
        if (wait.ready()) waits[rank] = next(rank);
        open++;
      }
    }
    if (ends !== size) throw new Error(`a barrier of ${size} ranks ended on ${ends}`);
  };
}

function neighboursOf({ parent, children }: TreePlace): readonly number[] {
  return [...parent === undefined ? [] : [parent], ...children];
}
