/**
 * Compares the values that several ranks hold: copies of parameters, buffers and optimizer states begin equal and take equal updates, so
 * they stay equal to the bit. A copy that differs means that a rank computes otherwise or that code changed it on one rank alone.
 *
 * @module
 */
import { at } from "../at.ts";
import { type HeldTensor, modelTensors, optimizerTensors } from "../checkpoint/state_dict/state_dict.ts";
import { readHeld } from "../checkpoint/state_dict/held_values.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { DivergenceError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import type { Optimizer } from "../optim/optimizer.ts";
import { byteHash, sha256 } from "../runtime/checksum.ts";

/** The parts of a training that ranks hold copies of. */
export interface Replicated {
  /** All ranks of the run. */
  readonly group: ProcessGroup;
  readonly model: CausalLm;
  readonly optimizer: Optimizer;
}

/** Elements that are read at a time. */
const PIECE = 2 ** 20;
/** Hexadecimal digits of a digest that ranks exchange: 64 bits. */
const DIGITS = 16;

/**
 * Compares the copies of parameters, buffers and optimizer states over all ranks, by digests. Collective. It reads all values of a rank
 * once, and takes one exchange of at most 34 bytes a tensor.
 *
 * @param step number of the step that was taken last, for the message
 * @returns the number of tensors of which some elements are on several ranks
 * @throws {DivergenceError} naming the first tensor whose copies differ, and the ranks; on every rank
 */
export function requireEqualReplicas({ group, model, optimizer }: Replicated, step: number): number {
  const tensors = [...modelTensors(model), ...optimizerTensors(model, optimizer)];
  const own = tensors.map((held) => `${elementsOf(held)}:${valuesOf(held)}`).join("\n");
  const byRank = group.exchangeText(own, "digests of replicas").map((text) => text.split("\n"));
  let replicated = 0;
  for (const [i, { name }] of tensors.entries()) {
    const entries = byRank.map((lines, rank) => {
      const entry = at(lines, i, "digest").split(":");
      return { rank, elements: at(entry, 0, "digest"), values: at(entry, 1, "digest") };
    }).filter(({ elements }) => elements !== "");
    const copies = [...Map.groupBy(entries, ({ elements }) => elements).values()].filter(({ length }) => length > 1);
    if (copies.length > 0) replicated++;
    for (const copy of copies) {
      const kinds = [...Map.groupBy(copy, ({ values }) => values).values()].map((same) => same.map(({ rank }) => rank));
      if (kinds.length > 1) throw new DivergenceError(differenceText(name, step, kinds));
    }
  }
  return replicated;
}

/** The sentence of the error. */
function differenceText(name: string, step: number, kinds: readonly (readonly number[])[]): string {
  const lists = kinds.map((same) => `${same.length === 1 ? "rank" : "ranks"} ${same.join(", ")}`);
  return `Copies of '${name}' differ after step ${step}: expected identical copies, but those on ${
    lists.join(" differ from those on ")
  }. ` +
    "Look for code that changes weights on one rank alone, and for hosts whose processors compute otherwise (fullyshard doctor, " +
    "--cpu-math); resume from a checkpoint before they differed";
}

/** A digest of which elements this rank holds; empty where it holds none. */
function elementsOf({ shard: { boxes } }: HeldTensor): string {
  return boxes.length === 0 ? "" : sha256([JSON.stringify(boxes)]).slice(0, DIGITS);
}

/** A digest of the values that this rank holds. */
function valuesOf(held: HeldTensor): string {
  const hash = byteHash("sha256");
  const { shard: { numel } } = held;
  const piece = new Float32Array(Math.min(PIECE, numel));
  for (let begin = 0; begin < numel; begin += PIECE) {
    const values = piece.subarray(0, Math.min(PIECE, numel - begin));
    readHeld(held, begin, values);
    hash.update(new Uint8Array(values.buffer, 0, values.byteLength));
  }
  return hash.finish().slice(0, DIGITS);
}
