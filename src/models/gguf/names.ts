/**
 * Tensors of a GGUF file made of a model's parameters: names, layers' numbers, rows in the order that llama.cpp expects.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { ElementRun, PlannedTensor } from "../../checkpoint/gguf/plan.ts";
import { UnsupportedError } from "../../errors.ts";
import { numelOf, type Shape } from "../../shape.ts";
import type { Parameter } from "../../tensor/parameter.ts";

/** The rules by which a family's parameters become tensors. */
export interface FamilyNames {
  /** The prefix of a layer's number, e.g. `model.layers`. */
  readonly layers: string;
  /** Names outside of layers, without `.weight` and `.bias`, each with llama.cpp's. */
  readonly outer: Readonly<Record<string, string>>;
  /** Names inside of a layer, each with llama.cpp's. */
  readonly inner: Readonly<Record<string, string>>;
  /** Heads of the tensors whose rows turn in pairs of neighbours in llama.cpp, and halves of a head here, by llama.cpp's names. */
  readonly heads?: Readonly<Record<string, number>>;
  /** True if norms multiply by 1 plus their weight, where llama.cpp's multiply by the weight. @default false */
  readonly zeroCentered?: boolean;
  /** llama.cpp's names of matrices that the files of the family have transposed. */
  readonly transposed?: readonly string[];
}

/** The parameters that ggml computes with in float32 alone. */
const EXACT: ReadonlySet<string> = new Set(["ffn_gate_inp", "ffn_gate_inp_shexp", "position_embd"]);

/** The parameters that are a matrix of one row here, and a vector in ggml. */
const VECTORS: ReadonlySet<string> = new Set(["ffn_gate_inp_shexp"]);

/** All experts' gates and projections up, one half after the other in each expert's rows. */
const FUSED_EXPERTS = /^mlp\.experts\.gate_up_proj$/;

/**
 * The tensors of parameters.
 *
 * @throws {UnsupportedError} for a parameter that llama.cpp has no name for
 */
export function* namedTensors(
  parameters: Iterable<readonly [fqn: string, parameter: Pick<Parameter, "shape">]>,
  names: FamilyNames,
): Generator<PlannedTensor> {
  const prefix = `${names.layers}.`;
  for (const [fqn, { shape }] of parameters) {
    const [layer, inside] = fqn.startsWith(prefix) ? split(fqn.slice(prefix.length)) : [undefined, fqn];
    const block = layer === undefined ? "" : `blk.${layer}.`;
    if (FUSED_EXPERTS.test(inside)) {
      yield* halves(fqn, shape, [`${block}ffn_gate_exps.weight`, `${block}ffn_up_exps.weight`]);
      continue;
    }
    const [, stem = inside, kind = "weight"] = /^(.*)\.(weight|bias)$/.exec(inside) ?? [];
    const table = layer === undefined ? names.outer : names.inner;
    const name = Object.hasOwn(table, stem) ? table[stem] : undefined;
    if (name === undefined) throw new UnsupportedError(`Cannot write '${fqn}' into GGUF: llama.cpp has no such tensor`);
    yield one(fqn, shape, names, { stem: name, full: `${block}${name}.${kind}` });
  }
}

function one(
  fqn: string,
  shape: Shape,
  { heads = {}, transposed = [], zeroCentered = false }: FamilyNames,
  { stem, full }: { readonly stem: string; readonly full: string },
): PlannedTensor {
  const exact = shape.length === 1 || EXACT.has(stem) || full.endsWith("_norm.weight");
  const flat = VECTORS.has(stem) ? [numelOf(shape)] : shape;
  const numHeads = Object.hasOwn(heads, stem) ? heads[stem] : undefined;
  if (transposed.includes(stem) && shape.length === 2) {
    return { name: full, shape: [...shape].reverse(), exact, source: { kind: "transposed", fqn } };
  }
  const runs = numHeads === undefined
    ? (): Iterable<ElementRun> => [{ start: 0, length: numelOf(shape) }]
    : (): Iterable<ElementRun> => interleavedRows(shape, numHeads);
  const plus = zeroCentered && full.endsWith("_norm.weight") ? 1 : 0;
  return { name: full, shape: flat, exact, source: { kind: "runs", fqn, runs, plus } };
}

/** Rows of heads, alternating between a head's halves: 0, d/2, 1, d/2 + 1 … */
function* interleavedRows(shape: Shape, numHeads: number): Generator<ElementRun> {
  const rows = at(shape, 0, "dim");
  const length = numelOf(shape) / rows;
  const half = rows / numHeads / 2;
  for (let head = 0; head < numHeads; head++) {
    for (let row = 0; row < half; row++) {
      for (const part of [0, 1]) yield { start: ((2 * head + part) * half + row) * length, length };
    }
  }
}

/** The halves of each expert's rows as tensors of their own. */
function* halves(fqn: string, shape: Shape, names: readonly string[]): Generator<PlannedTensor> {
  const [experts, rows, cols] = [at(shape, 0, "dim"), at(shape, 1, "dim") / names.length, at(shape, 2, "dim")];
  const length = rows * cols;
  for (const [i, name] of names.entries()) {
    const runs = (): ElementRun[] =>
      Array.from({ length: experts }, (_, expert) => ({ start: (expert * names.length + i) * length, length }));
    yield { name, shape: [experts, rows, cols], exact: false, source: { kind: "runs", fqn, runs } };
  }
}

function split(rest: string): readonly [layer: string, inside: string] {
  const dot = rest.indexOf(".");
  return [rest.slice(0, dot), rest.slice(dot + 1)];
}
