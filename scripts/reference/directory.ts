/**
 * A directory of reference results: a Hugging Face model, and what PyTorch computes with it, as
 * `tests/parity/make_reference.py` writes them.
 *
 * @module
 */
import { readFileSync } from "node:fs";
import * as z from "zod";
import { openSafetensors } from "../../src/checkpoint/format/safetensors.ts";
import { float32, int64 } from "../../src/dtype.ts";

type ByName = Readonly<Record<string, number>>;

/** The numbers of `expected.json`. */
export interface Facts {
  readonly loss: number;
  readonly masked_loss: number;
  readonly long_loss?: number | null | undefined;
  /** The loss that balances routers, and that of the batch with padding, where the config asks for them. */
  readonly aux_loss?: number | null | undefined;
  readonly masked_aux_loss?: number | null | undefined;
  /** The result of asking for it, where the config does not. */
  readonly aux?:
    | { readonly aux_loss: number; readonly loss_with_aux: number; readonly total_grad_norm: number }
    | null
    | undefined;
  readonly no_grad_params: readonly string[];
  readonly grad_norms: ByName;
  readonly step_losses: readonly number[];
  readonly step_grad_norms: readonly number[];
  readonly final_sum: ByName;
  readonly final_sumsq: ByName;
  /** The change of each quantity when every weight is off by its last bit. */
  readonly sensitivity: ByName;
  /** The change of an element of some final weights then. */
  readonly final_max_abs_change_under_ulp_noise: ByName;
}

/** A number; one that is not finite, which Python writes by its name, as a text. */
const number = z.union([z.number(), z.enum(["NaN", "Infinity", "-Infinity"]).transform(Number)]);
const byName = z.record(z.string(), number);

const factsSchema: z.ZodType<Facts> = z.object({
  loss: number,
  masked_loss: number,
  long_loss: number.nullish(),
  aux_loss: number.nullish(),
  masked_aux_loss: number.nullish(),
  aux: z.object({ aux_loss: number, loss_with_aux: number, total_grad_norm: number }).nullish(),
  no_grad_params: z.array(z.string()).default([]),
  grad_norms: byName,
  step_losses: z.array(number),
  step_grad_norms: z.array(number),
  final_sum: byName,
  final_sumsq: byName,
  sensitivity: byName,
  final_max_abs_change_under_ulp_noise: byName.default({}),
});

/** One tensor of a file. */
interface Stored {
  readonly shape: readonly number[];
  readonly values: Float32Array<ArrayBuffer> | Int32Array<ArrayBuffer>;
}

/** The tensors of a file of float32 and int64 ones. */
export class StoredTensors {
  readonly #path: string;
  readonly #tensors: ReadonlyMap<string, Stored>;

  private constructor(path: string, tensors: ReadonlyMap<string, Stored>) {
    this.#path = path;
    this.#tensors = tensors;
  }

  /** Reads a file. */
  static async read(path: string): Promise<StoredTensors> {
    using file = await openSafetensors(path);
    const tensors = new Map<string, Stored>();
    for (const { name, shape, dtype, byteLength } of file.entries) {
      const bytes = new Uint8Array(byteLength);
      await file.readInto(name, 0, byteLength, bytes);
      if (dtype !== float32 && dtype !== int64) throw new Error(`${path}: '${name}' is ${dtype?.name}`);
      const values = dtype === float32
        ? new Float32Array(bytes.buffer)
        : Int32Array.from(new BigInt64Array(bytes.buffer), Number);
      tensors.set(name, { shape, values });
    }
    return new StoredTensors(path, tensors);
  }

  /** Names of all tensors. */
  get names(): readonly string[] {
    return [...this.#tensors.keys()];
  }

  /** True if there is a tensor of that name. */
  has(name: string): boolean {
    return this.#tensors.has(name);
  }

  /** The shape of a tensor. */
  shape(name: string): readonly number[] {
    return this.#get(name).shape;
  }

  /** A float32 tensor. */
  floats(name: string): Float32Array<ArrayBuffer> {
    const { values } = this.#get(name);
    if (values instanceof Float32Array) return values;
    throw new Error(`${this.#path}: '${name}' holds integers`);
  }

  /** An int64 tensor. */
  ints(name: string): Int32Array<ArrayBuffer> {
    const { values } = this.#get(name);
    if (values instanceof Int32Array) return values;
    throw new Error(`${this.#path}: '${name}' holds floats`);
  }

  #get(name: string): Stored {
    const stored = this.#tensors.get(name);
    if (stored === undefined) throw new Error(`${this.#path}: there is no '${name}'`);
    return stored;
  }
}

/** Reads `expected.json`. */
export function readFacts(directory: string): Facts {
  const text = readFileSync(`${directory}/expected.json`, "utf8");
  // Names of numbers are not JSON: they become texts.
  return factsSchema.parse(JSON.parse(text.replace(/(?<=[:[,]\s*)(?:NaN|-?Infinity)(?=\s*[,}\]])/g, '"$&"')));
}
