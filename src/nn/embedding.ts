/**
 * The embedding table.
 *
 * @module
 */
import { requireKnownKeys } from "../config/known_keys.ts";
import type { Device } from "../device/device.ts";
import { ArgumentError } from "../errors.ts";
import { embeddingOp } from "../ops/embedding.ts";
import { applyOne } from "../tensor/apply.ts";
import { type Init, Parameter } from "../tensor/parameter.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { Module } from "./module.ts";

/** Options of an embedding. */
export interface EmbeddingOptions {
  /** The row that gets no gradient from lookups. */
  readonly paddingIdx?: number;
  /** Initial values of the table. @default standard normal */
  readonly init?: Init;
}

/** Rows of a table [vocab, width] by token id. */
export class Embedding extends Module<[ids: Tensor], Tensor> {
  /** The table, [vocab, width]. */
  readonly weight: Parameter;
  readonly #paddingIdx: number;

  /**
   * Makes the table, without memory.
   *
   * @throws {ArgumentError} if `paddingIdx` is no row of the table, or an option is none of these
   */
  constructor(device: Device, vocab: number, width: number, options: EmbeddingOptions = {}) {
    super();
    requireKnownKeys("make an Embedding", options, { paddingIdx: true, init: true });
    const { paddingIdx } = options;
    if (paddingIdx !== undefined && !(Number.isInteger(paddingIdx) && paddingIdx >= 0 && paddingIdx < vocab)) {
      throw new ArgumentError(
        `Cannot pad an embedding by row ${paddingIdx}: paddingIdx must be a row of ${vocab}, from 0`,
      );
    }
    this.weight = new Parameter(device, [vocab, width], { init: options.init ?? { kind: "normal", mean: 0, std: 1 } });
    this.#paddingIdx = paddingIdx ?? -1;
  }

  /** The row that gets no gradient from lookups; -1 for none. */
  get paddingIdx(): number {
    return this.#paddingIdx;
  }

  /** ids int32 [..] → [.., width] */
  forward(ids: Tensor): Tensor {
    return applyOne(embeddingOp, [this.weight, ids], { paddingIdx: this.#paddingIdx });
  }
}
