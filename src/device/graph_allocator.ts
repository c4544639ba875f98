/**
 * The allocator of a device with graphs: it counts what work would take in a graph, and hands out a graph's own block while work
 * is captured.
 *
 * @module
 */
import { Allocator, type MemoryKind } from "./allocator.ts";
import { type DevicePtr, devicePtr } from "./device.ts";
import { GraphMemory } from "./graph_memory.ts";
import type { GraphPlan } from "./graphs.ts";
import type { Stream } from "./stream.ts";

/** One past the last address of memory that is only counted. */
const ENDLESS = 2 ** 52;

/** Memory of a graph, and what it may read that was freed while it was captured. */
interface GraphBlock {
  readonly memory: GraphMemory;
  /** What is done when it is gone. */
  readonly kept: (() => void)[];
  /** Whether the graph is gone, so that what is left of it goes with the last block. */
  isClosed: boolean;
}

/** Hands out blocks of a device's memory, and of graphs'. */
export class GraphAllocator extends Allocator {
  readonly #name: string;
  readonly #streamOf: () => Stream;
  readonly #graphs = new Set<GraphBlock>();
  /** What is being captured into. */
  #capturing: GraphBlock | undefined;
  /** Where it is counted what a graph would take, and the blocks that stand for those there are. */
  #rehearsal: { readonly memory: GraphMemory; readonly blocks: Map<DevicePtr, DevicePtr> } | undefined;

  /** @param stream the one under way */
  constructor(name: string, begin: number, end: number, stream: () => Stream) {
    super(name, begin, end);
    this.#name = name;
    this.#streamOf = stream;
  }

  override allocate(bytes: number, owner: string, kind?: MemoryKind, alignment?: number): DevicePtr {
    if (this.#capturing !== undefined) {
      const ptr = this.#capturing.memory.allocate(bytes, owner, kind, alignment);
      this.given(ptr, bytes, owner);
      return ptr;
    }
    const ptr = super.allocate(bytes, owner, kind, alignment);
    this.#rehearsal?.blocks.set(ptr, this.#rehearsal.memory.allocate(bytes, owner, kind, alignment));
    this.given(ptr, bytes, owner);
    return ptr;
  }

  override free(ptr: DevicePtr): void {
    for (const block of this.#graphs) {
      if (!block.memory.has(ptr)) continue;
      this.takenBack(ptr);
      block.memory.free(ptr);
      return this.#endBlock(block);
    }
    if (this.#capturing !== undefined) return void this.#capturing.kept.push(() => this.free(ptr));
    const [rehearsal, counted] = [this.#rehearsal, this.#rehearsal?.blocks.get(ptr)];
    if (counted !== undefined) {
      rehearsal?.memory.free(counted);
      rehearsal?.blocks.delete(ptr);
    }
    this.takenBack(ptr);
    super.free(ptr);
  }

  /** Counts what `work` would take in a graph. */
  rehearse<T>(work: () => T): GraphPlan<T> {
    const memory = new GraphMemory(this.#name, 0, ENDLESS, this.#streamOf, () => false);
    this.#rehearsal = { memory, blocks: new Map() };
    try {
      return { value: work(), bytes: memory.stats.highest };
    } finally {
      this.#rehearsal = undefined;
    }
  }

  /** Does something when the graph is gone that is being captured. */
  afterGraph(end: () => void): void {
    this.#capturing?.kept.push(end);
  }

  /** Takes memory for a graph; gives what lets `work` allocate there, and gives it back. Nothing may be under way. */
  openGraph(bytes: number): { readonly capture: <T>(work: () => T) => T; readonly close: () => void } {
    const begin = super.allocate(bytes, "memory of a graph");
    const isOpen = (): boolean => this.#capturing === block;
    const memory = new GraphMemory(`${this.#name} in a graph`, begin, begin + bytes, this.#streamOf, isOpen);
    const block: GraphBlock = { memory, kept: [], isClosed: false };
    this.#graphs.add(block);
    const capture = <T>(work: () => T): T => {
      this.#capturing = block;
      try {
        return work();
      } finally {
        this.#capturing = undefined;
      }
    };
    const close = (): void => {
      block.isClosed = true;
      this.#endBlock(block);
    };
    return { capture, close };
  }

  /** Something is given out, of a graph too. @default nothing is done */
  protected given(_ptr: DevicePtr, _bytes: number, _owner: string): void {}

  /** Something is taken back: what was freed in a capture, when its graph is gone. @default nothing is done */
  protected takenBack(_ptr: DevicePtr): void {}

  #endBlock(block: GraphBlock): void {
    if (!block.isClosed || block.memory.stats.inUse > 0) return;
    this.#graphs.delete(block);
    for (const end of block.kept) end();
    super.free(devicePtr(block.memory.begin));
  }
}
