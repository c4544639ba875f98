/**
 * Names ↔ tensors: what a model and its optimizer hold on this rank under which names, and the full report of what does
 * not fit when tensors are to be loaded. Files are left to others.
 *
 * @module
 */
import type { Device, DevicePtr } from "../device/device.ts";
import { ArgumentError, CheckpointError } from "../errors.ts";
import type { Optimizer } from "../optim/optimizer.ts";
import { sameShape, type Shape } from "../shape.ts";
import type { BufferTensor } from "../tensor/buffer_tensor.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { type Box, type ShardLayout, wholeBox, wholeLayout } from "../tensor/shard_layout.ts";
import { ownedPtr, writeParametersAsync } from "../tensor/write.ts";
import type { SafetensorsEntry } from "./safetensors_header.ts";

/** A tensor of a Hugging Face directory: the part of a parameter or buffer that it holds. */
export interface DirectoryTensor {
  /** Its name there. */
  readonly name: string;
  /** Its shape there; as many elements as the box has. */
  readonly shape: Shape;
  /** Where its values lie. */
  readonly part: Parameter | BufferTensor;
  /** Which elements of the parameter or buffer it holds, in their order. */
  readonly box: Box;
}

/** What a model is made of. */
export interface NamedParts {
  /** All parameters with their names, tied ones once. */
  namedParameters(): Iterable<readonly [name: string, parameter: Parameter]>;
  /** All buffers with their names. */
  namedBuffers(): Iterable<readonly [name: string, buffer: BufferTensor]>;
}

/** What checkpoints ask of a model. */
export interface CheckpointModel extends NamedParts {
  /** The tensors of a Hugging Face directory of this model. */
  directoryTensors(): Iterable<DirectoryTensor>;
  /** The `config.json` that `transformers` reads. */
  readonly hfConfig: Readonly<Record<string, unknown>>;
  /** Names of tensors that are stored under another one's (`lm_head.weight` when tied). */
  readonly tiedNames: ReadonlyMap<string, string>;
}

/** One tensor for each parameter and saved buffer, under its name: the usual layout of a directory. */
export function* plainDirectoryTensors(
  model: NamedParts,
): Generator<DirectoryTensor> {
  for (const [name, part] of namedParts(model)) yield { name, part, shape: part.shape, box: wholeBox(part.shape) };
}

/** Parameters, then buffers that are saved. */
function* namedParts(model: NamedParts): Generator<readonly [name: string, part: DirectoryTensor["part"]]> {
  yield* model.namedParameters();
  for (const [name, buffer] of model.namedBuffers()) if (buffer.persistent) yield [name, buffer];
}

/** A parameter, buffer or optimizer state, and the elements of it that this rank holds, as float32. */
export interface HeldTensor {
  readonly name: string;
  readonly shard: ShardLayout;
  readonly device: Pick<Device, "copyIn" | "copyOut">;
  /** Address of the first element held; only asked for where there are any. */
  readonly ptr: () => DevicePtr;
}

/** This rank's part of one parameter, or a buffer, of which every rank has all. */
export function heldPart(name: string, part: Parameter | BufferTensor): HeldTensor {
  if (!("storage" in part)) return { name, shard: wholeLayout(part.shape), device: part.device, ptr: () => part.ptr };
  const { shard, run: { device } } = part.storage;
  return { name, shard, device, ptr: () => ownedPtr(part) };
}

/** This rank's part of a model. */
export function modelTensors(model: CheckpointModel): HeldTensor[] {
  return [...namedParts(model)].map(([name, part]) => heldPart(name, part));
}

/**
 * Lets `write` overwrite what this rank holds of all parameters and buffers. A parameter or buffer without memory gets some
 * first. Every rank must call it.
 */
export async function writeModelAsync(model: CheckpointModel, write: () => Promise<void>): Promise<void> {
  for (const [, buffer] of model.namedBuffers()) buffer.materialize();
  await writeParametersAsync([...model.namedParameters()].map(([, parameter]) => parameter), write);
}

/**
 * This rank's part of an optimizer's states, named `<parameter's name>.<state's name>`.
 *
 * @throws {ArgumentError} if the optimizer has a parameter that the model has not
 */
export function optimizerTensors(model: CheckpointModel, optimizer: Optimizer): HeldTensor[] {
  const names = new Map([...model.namedParameters()].map(([name, parameter]) => [parameter, name]));
  return [...optimizer.stateViews()].map(({ parameter, name, device, ptr }) => {
    const fqn = names.get(parameter);
    if (fqn === undefined) {
      throw new ArgumentError(`Cannot name the states of '${parameter.fqn}': the optimizer is of another model`);
    }
    const { shard } = parameter.storage;
    return { name: `${fqn}.${name}`, shard, device, ptr: () => ptr };
  });
}

/** What a file says of a tensor. */
export type FoundTensor = Pick<SafetensorsEntry, "shape" | "code">;

/** What a comparison needs besides the tensors. */
interface FitRules {
  /** File or directory, for the error. */
  readonly where: string;
  /** What the tensors are for: `model` or `optimizer`. */
  readonly what: string;
  /** Dtypes that can be loaded. */
  readonly codes: readonly string[];
  /** More that is wrong, one line each. */
  readonly problems?: readonly string[];
  /** What helps, by the name of a missing tensor. */
  readonly remedies?: ReadonlyMap<string, string>;
}

/**
 * Compares what is to be loaded with what there is.
 *
 * @throws {CheckpointError} listing everything that is missing, unexpected, or of another shape or dtype
 */
export function requireFit(
  expected: ReadonlyMap<string, Shape>,
  found: ReadonlyMap<string, FoundTensor>,
  rules: FitRules,
): void {
  const { where, what, codes, remedies } = rules;
  const lines: string[] = [];
  for (const [name, shape] of expected) {
    if (found.has(name)) continue;
    const remedy = remedies?.get(name);
    lines.push(`missing: '${name}' [${shape.join(", ")}]${remedy === undefined ? "" : `; ${remedy}`}`);
  }
  for (const [name, { shape, code }] of found) {
    const wanted = expected.get(name);
    if (wanted === undefined) {
      lines.push(`unexpected: '${name}' ${code} [${shape.join(", ")}]`);
      continue;
    }
    if (!sameShape(wanted, shape)) {
      lines.push(`shape: '${name}' expected [${wanted.join(", ")}], got [${shape.join(", ")}]`);
    }
    if (!codes.includes(code)) lines.push(`dtype: '${name}' expected ${codes.join(", ")}, got ${code}`);
  }
  lines.push(...rules.problems ?? []);
  if (lines.length === 0) return;
  const count = `${lines.length} problem${lines.length === 1 ? "" : "s"}`;
  throw new CheckpointError(where, `Tensors do not fit the ${what}, ${count}:\n  ${lines.join("\n  ")}`);
}
