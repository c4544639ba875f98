/**
 * Traces in a folder: as JSON, but weights in a file for each content, so that thousands of cases that agree take the room of one.
 *
 * @module
 */
import { createHash } from "node:crypto";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import type { WholeTrace } from "./traces.ts";

/** A trace as it is written: its weights by the name of their file. */
interface StoredTrace extends Omit<WholeTrace, "weights"> {
  readonly weights: string;
}

/** A folder of traces; weights that agree are in memory once. */
export class TraceFolder {
  readonly #folder: string;
  readonly #weights = new Map<string, Float32Array>();

  constructor(folder: string) {
    this.#folder = folder;
  }

  /** Writes groups of traces, under a name of their own. */
  write(name: string, groups: readonly (readonly StoredTrace[])[]): void {
    writeFileSync(`${this.#folder}/${name}.json`, JSON.stringify(groups));
  }

  /** Writes the weights of a trace, if no other trace had the same bits, and gives the trace without them. */
  store(trace: WholeTrace): StoredTrace {
    const { buffer, byteOffset, byteLength } = trace.weights;
    const bytes = new Uint8Array(buffer, byteOffset, byteLength);
    const weights = `${createHash("sha256").update(bytes).digest("hex")}.f32`;
    if (!existsSync(`${this.#folder}/${weights}`)) writeFileSync(`${this.#folder}/${weights}`, bytes);
    return { ...trace, weights };
  }

  /** Reads what {@link write} wrote. */
  read(name: string): readonly WholeTrace[][] {
    const groups: readonly StoredTrace[][] = JSON.parse(readFileSync(`${this.#folder}/${name}.json`, "utf8"));
    return groups.map((traces) => traces.map((trace) => ({ ...trace, weights: this.#weightsOf(trace.weights) })));
  }

  #weightsOf(file: string): Float32Array {
    const known = this.#weights.get(file);
    if (known !== undefined) return known;
    const weights = new Float32Array(new Uint8Array(readFileSync(`${this.#folder}/${file}`)).buffer);
    this.#weights.set(file, weights);
    return weights;
  }
}
