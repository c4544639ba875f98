/**
 * The weights of a checkpoint or folder as one GGUF file, written by one process that holds a piece of one tensor at a time.
 *
 * @module
 */
import { at } from "../../at.ts";
import { lockFolder } from "../../locks/folder_lock.ts";
import { InternalError } from "../../errors.ts";
import { absolutePath, listDirectory, removeQuietly } from "../../runtime/files.ts";
import { numelOf } from "../../shape.ts";
import { type ModelValues, openModelValues } from "../offline/model_values.ts";
import type { SavableModel } from "../state_dict/state_dict.ts";
import { type Encoding, F16, F32 } from "./encodings.ts";
import { type GgufMetadata, type GgufTensorSpec, uint32, writeGguf } from "./format.ts";
import type { GgufPlan, PlannedTensor, TensorSource } from "./plan.ts";

/** Elements of a transposed matrix that are held at once. */
const PANEL = 1 << 22;
/** The version of ggml's quantized blocks (`GGML_QNT_VERSION`). */
const QUANTIZATION_VERSION = 2;

/** Options of an export. */
export interface GgufExport {
  /** The checkpoint or folder. */
  readonly from: string;
  /** The file. */
  readonly to: string;
  /** Of the checkpoint's config, with or without memory. */
  readonly model: SavableModel;
  readonly plan: GgufPlan;
  readonly encoding: Encoding;
  /** The keys of the tokenizer. */
  readonly tokenizer: GgufMetadata;
  /** Writes the averages of the weights (`emaDecay`) in place of these. @default false */
  readonly averages?: boolean;
}

/** Facts about the file that was written. */
export interface GgufExported {
  readonly byteLength: number;
  readonly tensors: number;
  /** Names of tensors that are in float16, as their rows are no whole number of blocks. */
  readonly unblocked: readonly string[];
}

/**
 * Writes the file: vectors, norms and routers in float32, all else as asked for.
 *
 * @throws {CheckpointError} if the checkpoint does not fit the model, or is damaged
 * @throws {FileError} if a file cannot be read or written, or another process writes this one; what was at `to` is then as it was
 * @throws {NonFiniteError} for weights that the encoding cannot hold
 */
export async function exportGguf(
  { from, to, model, plan, encoding, tokenizer, averages = false }: GgufExport,
): Promise<GgufExported> {
  const path = absolutePath(to);
  const end = path.lastIndexOf("/");
  const [folder, file] = [path.slice(0, end) || "/", path.slice(end + 1)];
  using _lock = await lockFolder(folder, { file: `${folder}/.${file}.lock`, removesEmpty: true });
  using values = await openModelValues(from, model, averages);
  removeLeftovers(folder, file);
  const unblocked: string[] = [];
  const specs = plan.tensors.map((tensor): GgufTensorSpec => {
    const { name, shape, exact } = tensor;
    const isBlocked = at(shape, shape.length - 1, "dim") % encoding.blockLength === 0;
    if (!exact && !isBlocked) unblocked.push(name);
    return { name, shape, encoding: exact ? F32 : isBlocked ? encoding : F16 };
  });
  const metadata: GgufMetadata = new Map([
    ...plan.metadata,
    ["general.quantization_version", uint32(QUANTIZATION_VERSION)],
    ["general.file_type", uint32(encoding.fileType)],
    ...tokenizer,
  ]);
  const byteLength = writeGguf(to, metadata, specs, function* ({ name, encoding }, index) {
    const tensor = plan.tensors[index];
    if (tensor === undefined) throw new InternalError(`no tensor '${name}' for ${to}`);
    for (const piece of piecesOf(values, tensor)) yield encoding.encode(piece, name);
  });
  return { byteLength, tensors: specs.length, unblocked };
}

/** Removes what exports of the same name left behind that were killed: nobody else writes it now. */
function removeLeftovers(folder: string, file: string): void {
  for (const name of listDirectory(folder)) {
    const isOwn = name.startsWith(`.${file}.`) && /^\d+\.partial$/.test(name.slice(file.length + 2));
    if (isOwn) removeQuietly(`${folder}/${name}`);
  }
}

/** The values of a tensor, piece by piece, each of full blocks. */
function* piecesOf(values: ModelValues, { shape, source }: PlannedTensor): Generator<Float32Array<ArrayBuffer>> {
  switch (source.kind) {
    case "values":
      yield Float32Array.from(source.values);
      return;
    case "runs":
      yield* runsOf(values, source);
      return;
    case "transposed":
      yield* transposed(values, source.fqn, at(shape, 0, "dim"), numelOf(shape) / at(shape, 0, "dim"));
  }
}

function* runsOf(
  values: ModelValues,
  { fqn, runs, plus = 0 }: Extract<TensorSource, { readonly kind: "runs" }>,
): Generator<Float32Array<ArrayBuffer>> {
  for (const { start, length } of runs()) {
    for (const piece of values.read(fqn, start, length)) yield plus === 0 ? piece : piece.map((value) => value + plus);
  }
}

/** A stored matrix [cols, rows] as [rows, cols], some rows at a time. */
function* transposed(
  values: ModelValues,
  fqn: string,
  rows: number,
  cols: number,
): Generator<Float32Array<ArrayBuffer>> {
  const most = Math.max(1, Math.floor(PANEL / cols));
  for (let first = 0; first < rows; first += most) {
    const count = Math.min(most, rows - first);
    const panel = new Float32Array(count * cols);
    for (let col = 0; col < cols; col++) {
      let row = 0;
      for (const piece of values.read(fqn, col * rows + first, count)) {
        for (const value of piece) panel[row++ * cols + col] = value;
      }
    }
    yield panel;
  }
}
