/**
 * Names ↔ tensors: what a model and its optimizer hold on this rank under which names, and the full report of what does
 * not fit when tensors are to be loaded. Files are left to others.
 *
 * @module
 */
import type { Device, DevicePtr } from "../../device/device.ts";
import type { MemoryPlace } from "../../device/offload.ts";
import { type DType, float32 } from "../../dtype.ts";
import { ArgumentError, CheckpointError } from "../../errors.ts";
import type { Optimizer } from "../../optim/optimizer.ts";
import { sameShape, type Shape } from "../../shape.ts";
import type { BufferTensor } from "../../tensor/buffer_tensor.ts";
import type { Parameter } from "../../tensor/parameter.ts";
import { type Box, fullBox, fullLayout, type ShardLayout } from "../../tensor/shard_layout.ts";
import { openForWriting, ownedPtr, type ParameterWriting } from "../../tensor/write.ts";
import type { Companions } from "../format/companions.ts";
import type { SafetensorsEntry } from "../format/safetensors_header.ts";
import { explainWrapped } from "../format/wrapped_names.ts";
import { HeldBlocks } from "./held_blocks.ts";

/** A tensor of a Hugging Face directory: the part of a parameter or buffer that it holds. */
export interface DirectoryTensor {
  /** The tensor's name in the file. */
  readonly name: string;
  /** The tensor's shape in the file, of as many elements as the box. */
  readonly shape: Shape;
  /** The parameter or buffer that holds the values. */
  readonly part: Parameter | BufferTensor;
  /** The box of elements of the parameter or buffer that it holds, in their order. */
  readonly box: Box;
}

/** The parameters and buffers of a model. */
export interface NamedParts {
  /** All parameters with their names, tied ones once. */
  namedParameters(): Iterable<readonly [name: string, parameter: Parameter]>;
  /** All buffers with their names. */
  namedBuffers(): Iterable<readonly [name: string, buffer: BufferTensor]>;
}

/** A model that files are made of: any `Module` is one. What is optional, models of families have. */
export interface SavableModel extends NamedParts {
  /** The tensors of a Hugging Face directory of this model. @default one for each parameter and saved buffer */
  directoryTensors?(): Iterable<DirectoryTensor>;
  /** The `config.json` that `transformers` reads. @default none is written */
  readonly hfConfig?: Readonly<Record<string, unknown>> | undefined;
  /** Keys that saved configs have otherwise than `hfConfig`. @default none */
  readonly configChanges?: Readonly<Record<string, unknown>> | undefined;
  /** The model's class in `transformers`, which saved configs name in `architectures`. @default what the config has */
  readonly hfClass?: string | undefined;
  /**
   * Names of tensors that are stored under another tensor's name (`lm_head.weight` when tied).
   *
   * @default the names of parts that a module's tree has twice
   */
  readonly tiedNames?: ReadonlyMap<string, string> | undefined;
  /** The names and layouts that other files of the model's family use. */
  readonly otherFiles?: OtherFiles;
  /** Small files that each save writes beside the weights. @default none */
  readonly companions?: Companions | undefined;
}

/** A model of a family, which has a config that `transformers` reads. */
export interface CheckpointModel extends SavableModel {
  /** The tensors of a Hugging Face directory of this model. */
  directoryTensors(): Iterable<DirectoryTensor>;
  /** The `config.json` that `transformers` reads. */
  readonly hfConfig: Readonly<Record<string, unknown>>;
  /** Names of tensors that are stored under another tensor's name (`lm_head.weight` when tied). */
  readonly tiedNames: ReadonlyMap<string, string>;
}

/** Names that transformers reads in files of a family, and that this library does not write. */
export interface OtherFiles {
  /** The prefix of names in the body without its head, e.g. `model.`: files of the body alone have names without it. */
  readonly bodyPrefix: string;
  /** Prefixes of names, with what stands for them here. */
  readonly prefixes?: ReadonlyMap<string, string> | undefined;
  /** Names of tensors that the model does not have, and that are left alone (`_keys_to_ignore_on_load_unexpected`). */
  readonly ignored?: readonly RegExp[] | undefined;
}

/** One tensor for each parameter and saved buffer, under its name: the usual layout of a directory. */
export function* plainDirectoryTensors(
  model: NamedParts,
): Generator<DirectoryTensor> {
  for (const [name, part] of namedParts(model)) {
    const shape = globalShapeOf(part);
    yield { name, part, shape, box: fullBox(shape) };
  }
}

/** Shape of the tensor that files have of a parameter, which may be one rank's part of it, or of a buffer. */
function globalShapeOf(part: DirectoryTensor["part"]): Shape {
  return "globalShape" in part ? part.globalShape : part.shape;
}

/** Parameters, then buffers that are saved. */
function* namedParts(model: NamedParts): Generator<readonly [name: string, part: DirectoryTensor["part"]]> {
  yield* model.namedParameters();
  for (const [name, buffer] of model.namedBuffers()) if (buffer.persistent) yield [name, buffer];
}

/** A parameter, buffer or optimizer state, and the elements of it that this rank holds. */
export interface HeldTensor {
  readonly name: string;
  /** The dtype in its memory: float32, a narrower dtype for frozen parameters that are kept in it, or uint8 for states in 8 bits. */
  readonly dtype: DType;
  readonly shard: ShardLayout;
  /** The device that owns the elements' memory. */
  readonly device: MemoryPlace["device"];
  /** The device that computes with them, whose memory collectives reach. */
  readonly computeDevice: Device;
  /** Address of the first element held; only asked for where there are any. */
  readonly ptr: () => DevicePtr;
  /** Moves elements in and out of blocks, where they are quantized. */
  readonly blocks?: HeldBlocks | undefined;
}

/** This rank's part of a parameter, or a buffer, which every rank has in full. */
export function heldPart(name: string, part: Parameter | BufferTensor): HeldTensor {
  const { device: computeDevice } = part;
  if (!("storage" in part)) {
    const whole = { name, dtype: float32, shard: fullLayout(part.shape), device: computeDevice, computeDevice };
    return { ...whole, ptr: () => part.ptr };
  }
  const { storage, storage: { shard, flatShard: { device, dtype } } } = part;
  const ptr = (): DevicePtr => {
    if (part.storage === storage) return ownedPtr(part);
    throw new ArgumentError(`What was '${name}' lies elsewhere since the model was sharded anew: ask for it again`);
  };
  return { name, dtype, shard, device, computeDevice, ptr, blocks: HeldBlocks.of(part) };
}

/** This rank's part of a model. */
export function modelTensors(model: NamedParts): HeldTensor[] {
  return [...namedParts(model)].map(([name, part]) => heldPart(name, part));
}

/**
 * Lets what this rank holds of all parameters and buffers be overwritten, until it is disposed. A parameter or buffer without
 * memory gets some first, and has none again if not all is written. Every rank must call it.
 *
 * @param missing names of those that will not be written
 * @throws {ArgumentError} if one of those has no values to keep
 */
export function openModelForWriting(model: NamedParts, missing: readonly string[] = []): ParameterWriting {
  const kept = new Set(missing);
  for (const [name, { storage }] of model.namedParameters()) {
    if (!kept.has(name) || storage.hasValues()) continue;
    throw new ArgumentError(`'${name}' is missing and has no values to keep: give it, or initialize the model first`);
  }
  const fresh = [...model.namedBuffers()].map(([, buffer]) => buffer).filter(({ buffer }) => !buffer.hasMemory);
  let isComplete = false;
  using opened = new DisposableStack();
  opened.defer(() => {
    if (!isComplete) { for (const buffer of fresh) buffer.vacate(); }
  });
  for (const buffer of fresh) {
    buffer.materialize();
    // A buffer that no file holds begins with the value that its module gives it.
    buffer.device.kernels.fill({ dtype: buffer.dtype, n: buffer.numel, value: buffer.value, dst: buffer.ptr });
  }
  const list = [...model.namedParameters()].map(([, parameter]) => parameter);
  const blocks = list.map((parameter) => HeldBlocks.of(parameter)).filter((one) => one !== undefined);
  for (const one of blocks) one.drop();
  const parameters = opened.use(openForWriting(list));
  const writing = opened.move();
  const complete = (): void => {
    for (const one of blocks) one.requireComplete();
    isComplete = true;
    parameters.complete();
  };
  return { complete, [Symbol.dispose]: () => writing.dispose() };
}

/** One state of one parameter. */
export interface HeldState extends HeldTensor {
  /** FQN of the parameter. */
  readonly fqn: string;
  /** PyTorch's name of the state, e.g. `exp_avg`. */
  readonly state: string;
}

/**
 * This rank's part of an optimizer's states, named `<parameter's name>.<state's name>`.
 *
 * @throws {ArgumentError} if the optimizer has a parameter that the model has not
 */
export function optimizerTensors(model: NamedParts, optimizer: Optimizer): HeldState[] {
  const names = new Map([...model.namedParameters()].map(([name, parameter]) => [parameter, name]));
  return [...optimizer.stateViews()].map(({ parameter, name: state, dtype, shard, device, ptr }) => {
    const fqn = names.get(parameter);
    if (fqn === undefined) {
      throw new ArgumentError(`Cannot name the states of '${parameter.fqn}': the optimizer is of another model`);
    }
    const { device: computeDevice } = parameter;
    return { name: `${fqn}.${state}`, fqn, state, dtype, shard, device, computeDevice, ptr };
  });
}

/** The shape and dtype that a file gives for a tensor. */
export type FoundTensor = Pick<SafetensorsEntry, "shape" | "code">;

/** Lines of an error in which every tensor has its own. */
const MOST_LINES = 30;

/** The rules of a comparison. */
interface FitRules {
  /** File or directory, for the error. */
  readonly where: string;
  /** The owner of the tensors: `model`, `optimizer` or `adapter`. */
  readonly what: string;
  /** Dtypes that can be loaded. */
  readonly codes: readonly string[];
  /** More that is wrong, one line each. */
  readonly problems?: readonly string[];
  /** Remedies, by the name of a missing tensor. */
  readonly remedies?: ReadonlyMap<string, string>;
  /** True if missing and unexpected tensors are refused. @default true */
  readonly strict?: boolean;
}

/** The names on either side that have no counterpart. */
export interface LoadReport {
  /** Names that the state dict lacks; their tensors are unchanged. */
  readonly missing: readonly string[];
  /** Names in the state dict that nothing in the model or optimizer has. */
  readonly unexpected: readonly string[];
}

/**
 * Compares what is to be loaded with what there is.
 *
 * @returns the missing and the unexpected names, where these are not refused
 * @throws {CheckpointError} listing everything that is missing, unexpected, or of another shape or dtype; names that a
 * wrapper has changed in one sentence
 */
export function requireFit(
  expected: ReadonlyMap<string, Shape>,
  found: ReadonlyMap<string, FoundTensor>,
  rules: FitRules,
): LoadReport {
  const { where, what, codes, remedies, strict = true } = rules;
  const lines: string[] = [];
  const [missing, unexpected]: [string[], string[]] = [[], []];
  for (const [name, shape] of expected) {
    if (found.has(name)) continue;
    missing.push(name);
    if (!strict) continue;
    const remedy = remedies?.get(name);
    lines.push(`missing: '${name}' [${shape.join(", ")}]${remedy === undefined ? "" : `; ${remedy}`}`);
  }
  for (const [name, { shape, code }] of found) {
    const wanted = expected.get(name);
    if (wanted === undefined) {
      unexpected.push(name);
      if (strict) lines.push(`unexpected: '${name}' ${code} [${shape.join(", ")}]`);
      continue;
    }
    if (!sameShape(wanted, shape)) {
      lines.push(`shape: '${name}' expected [${wanted.join(", ")}], got [${shape.join(", ")}]`);
    }
    if (!codes.includes(code)) lines.push(`dtype: '${name}' expected ${codes.join(", ")}, got ${code}`);
  }
  lines.push(...rules.problems ?? []);
  if (lines.length === 0) return { missing, unexpected };
  const wrapped = strict && what !== "adapter" ? explainWrapped({ missing, unexpected }) : undefined;
  if (wrapped !== undefined) throw new CheckpointError(where, wrapped);
  const count = `${lines.length} problem${lines.length === 1 ? "" : "s"}`;
  throw new CheckpointError(where, `Tensors do not fit the ${what}, ${count}:\n  ${inFew(lines).join("\n  ")}`);
}

/** Lines of an error. Where there are many, names that differ only in numbers share a line, with their count. */
function inFew(lines: readonly string[]): readonly string[] {
  if (lines.length <= MOST_LINES) return lines;
  const groups = new Map<string, number>();
  for (const line of lines) {
    const pattern = line.replace(/'[^']*'/, (name) => name.replace(/(?<=\.)\d+(?=\.)/g, "*"));
    groups.set(pattern, (groups.get(pattern) ?? 0) + 1);
  }
  const few = Array.from(groups, ([pattern, count]) => count === 1 ? pattern : `${pattern} (${count} times)`);
  return few.length <= MOST_LINES ? few : [...few.slice(0, MOST_LINES), `and ${few.length - MOST_LINES} more kinds`];
}
