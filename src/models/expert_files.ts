/**
 * The files of models whose experts lie in one parameter, as transformers keeps them in memory, and apart on disk.
 *
 * @module
 */
import { at } from "../at.ts";
import { type DirectoryTensor, type NamedParts, plainDirectoryTensors } from "../checkpoint/state_dict/state_dict.ts";
import type { Shape } from "../shape.ts";

/** Names that differ from family to family. */
export interface ExpertFileNames {
  /** The projections of an expert. @default `gate_proj`, `up_proj`, `down_proj` */
  readonly projections?: { readonly gate: string; readonly up: string; readonly down: string };
  /** The name in files of what has this one in memory. @default the same */
  readonly rename?: (name: string) => string;
}

const PROJECTIONS = { gate: "gate_proj", up: "up_proj", down: "down_proj" } as const;

/** All experts' projections in one parameter. */
const FUSED = /^(?<experts>.+\.experts)\.(?<projection>gate_up_proj|down_proj)$/;

/** The tensors of a directory in which each projection of each expert is one. */
export function* expertFiles(model: NamedParts, names: ExpertFileNames = {}): Generator<DirectoryTensor> {
  const { projections: { gate, up, down } = PROJECTIONS, rename = (name) => name } = names;
  for (const tensor of plainDirectoryTensors(model)) {
    const { experts, projection } = FUSED.exec(tensor.name)?.groups ?? {};
    if (experts === undefined) {
      yield { ...tensor, name: rename(tensor.name) };
      continue;
    }
    const { part, shape: whole } = tensor;
    const parts = projection === "down_proj" ? [down] : [gate, up];
    const [count, rows, cols] = [
      at(whole, 0, "dim"),
      at(whole, 1, "dim") / parts.length,
      at(whole, 2, "dim"),
    ];
    const shape: Shape = [rows, cols];
    for (let expert = 0; expert < count; expert++) {
      for (const [i, name] of parts.entries()) {
        const box = { offsets: [expert, i * rows, 0], sizes: [1, ...shape] };
        yield { name: rename(`${experts}.${expert}.${name}.weight`), part, shape, box };
      }
    }
  }
}
