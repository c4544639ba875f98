/**
 * The allocator of a device with graphs. It counts the memory that work would need in a graph, and allocates from a graph's own
 * block while work is captured.
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

/** The block of a graph, and memory freed during its capture, which it may still read. */
interface GraphBlock {
  readonly memory: GraphMemory;
  /** Called when the graph is gone. */
  readonly kept: (() => void)[];
  /** True if the graph was dropped, so that the block is freed when its last part is. */
  isClosed: boolean;
}

/** Allocates blocks of a device's memory and of graphs. */
export class GraphAllocator extends Allocator {
  readonly #name: string;
  readonly #streamOf: () => Stream;
  readonly #graphs = new Set<GraphBlock>();
  /** The graph that is being captured. */
  #capturing: GraphBlock | undefined;
  /** Memory that counts the needs of a graph, and the blocks that stand for real ones. */
  #rehearsal: { readonly memory: GraphMemory; readonly blocks: Map<DevicePtr, DevicePtr> } | undefined;

  /** @param stream returns the current stream */
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

  /** Counts the memory that `work` would need in a graph. */
  rehearse<T>(work: () => T): GraphPlan<T> {
    const memory = new GraphMemory(this.#name, 0, ENDLESS, this.#streamOf, () => false);
    this.#rehearsal = { memory, blocks: new Map() };
    try {
      return { value: work(), bytes: memory.stats.highest };
    } finally {
      this.#rehearsal = undefined;
    }
  }

  /** Calls `end` when the graph that is being captured is gone. */
  afterGraph(end: () => void): void {
    this.#capturing?.kept.push(end);
  }

  /** Allocates the block of a graph. `capture` lets `work` allocate there, `close` frees the block. No work may be under way. */
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

  /** Called for each allocation, also of a graph. @default does nothing */
  protected given(_ptr: DevicePtr, _bytes: number, _owner: string): void {}

  /** Called for each free; for memory freed in a capture, when its graph is gone. @default does nothing */
  protected takenBack(_ptr: DevicePtr): void {}

  #endBlock(block: GraphBlock): void {
    if (!block.isClosed || block.memory.stats.inUse > 0) return;
    this.#graphs.delete(block);
    for (const end of block.kept) end();
    super.free(devicePtr(block.memory.begin));
  }
}
