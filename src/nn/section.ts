/**
 * Sections of a model: consecutive blocks that are computed by themselves, as a stage of a pipeline does, and what they hand on.
 *
 * @module
 */
import type { Tensor } from "../tensor/tensor.ts";

/** Values that blocks hand on to the blocks behind them. */
export interface Carried {
  /** [batch, seq, hidden] */
  readonly hidden: Tensor;
  /** Logits of the routers so far whose load is balanced, [batch * seq, experts] each. */
  readonly routerLogits: readonly Tensor[];
  /** Keys that an indexer has selected for later layers, uint8 [batch, seq, keys]. */
  readonly selectedKeys?: Tensor | undefined;
}

/**
 * Consecutive blocks: with the first comes what is before the blocks, with the last what is behind them. It is an object of a class, so
 * that no module on the way casts what it carries: inside of a model nothing is cast between blocks but by the blocks themselves.
 */
export class ModelSection {
  /** The first block. */
  readonly begin: number;
  /** The block behind the last. */
  readonly end: number;
  /** The values that the blocks before gave; undefined for the first section. */
  readonly carried: Carried | undefined;

  /** Names the blocks, and takes what the blocks before them gave. */
  constructor(begin: number, end: number, carried?: Carried) {
    this.begin = begin;
    this.end = end;
    this.carried = carried;
  }
}
