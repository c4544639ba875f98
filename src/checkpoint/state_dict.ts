/**
 * Names ↔ tensors: what a model and its optimizer hold on this rank under which names, and the full report of what does
 * not fit when tensors are to be loaded. Files are left to others.
 *
 * @module
 */
import type { Device, DevicePtr } from "../device/device.ts";
import { ArgumentError, CheckpointError, InternalError } from "../errors.ts";
import type { Optimizer } from "../optim/optimizer.ts";
import type { Shape } from "../shape.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { elementRuns } from "../tensor/shard_layout.ts";
import { ownedPtr } from "../tensor/write.ts";
import type { Ranks } from "./ranks.ts";
import { type ElementRun, type HeldTensor, planWriters, type Writer } from "./shares.ts";

/** What checkpoints ask of a model. */
export interface CheckpointModel {
  /** All parameters with their names, tied ones once. */
  namedParameters(): Iterable<readonly [name: string, parameter: Parameter]>;
  /** The `config.json` that `transformers` reads. */
  readonly hfConfig: Readonly<Record<string, unknown>>;
  /** Names of tensors that are stored under another one's (`lm_head.weight` when tied). */
  readonly tiedNames: ReadonlyMap<string, string>;
}

/** A float32 tensor and the elements of it that this rank holds. */
export interface OwnedTensor {
  readonly name: string;
  readonly shape: Shape;
  /** The elements held; may be none. */
  readonly run: ElementRun;
  readonly device: Device;
  /** Address of the first of them; only asked for where there are any. */
  readonly ptr: () => DevicePtr;
}

function runOf({ fqn, storage: { shard } }: Parameter): ElementRun {
  const [run, ...others] = elementRuns(shard);
  if (others.length > 0) throw new InternalError(`'${fqn}' is not kept as one range of its elements`);
  return run ?? { offset: 0, length: 0 };
}

/** This rank's part of a model's parameters. */
export function modelTensors(model: CheckpointModel): OwnedTensor[] {
  return [...model.namedParameters()].map(([name, parameter]) => ({
    name,
    shape: parameter.shape,
    run: runOf(parameter),
    device: parameter.storage.run.device,
    ptr: () => ownedPtr(parameter),
  }));
}

/**
 * This rank's part of an optimizer's states, named `<parameter's name>.<state's name>`.
 *
 * @throws {ArgumentError} if the optimizer has a parameter that the model has not
 */
export function optimizerTensors(model: CheckpointModel, optimizer: Optimizer): OwnedTensor[] {
  const names = new Map([...model.namedParameters()].map(([name, parameter]) => [parameter, name]));
  return [...optimizer.stateViews()].map(({ parameter, name, ptr }) => {
    const fqn = names.get(parameter);
    if (fqn === undefined) {
      throw new ArgumentError(`Cannot name the states of '${parameter.fqn}': the optimizer is of another model`);
    }
    const { device } = parameter.storage.run;
    return { name: `${fqn}.${name}`, shape: parameter.shape, run: runOf(parameter), device, ptr: () => ptr };
  });
}

/** Tells all ranks who holds what, and agrees on who writes it. Collective. */
export function agreeOnWriters(tensors: readonly OwnedTensor[], ranks: Ranks): readonly (readonly Writer[])[] {
  const own = tensors.map(({ run }) => [run.offset, run.length]);
  const all = ranks.exchangeText(JSON.stringify(own), "shares").map((text): readonly (readonly number[])[] =>
    JSON.parse(text)
  );
  const held = tensors.map(({ name, shape }, i): HeldTensor => ({
    name,
    shape,
    held: all.map((runs) => ({ offset: runs[i]?.[0] ?? 0, length: runs[i]?.[1] ?? 0 })),
  }));
  return planWriters(held, ranks.size);
}

/** What a file says of a tensor. */
export interface FoundTensor {
  readonly shape: Shape;
  /** The dtype as the file spells it. */
  readonly code: string;
}

/** What a comparison needs besides the tensors. */
export interface FitRules {
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
 * @param expected name and shape of every tensor wanted
 * @param found every tensor there is
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
    if (wanted.length !== shape.length || wanted.some((size, i) => size !== shape[i])) {
      lines.push(`shape: '${name}' expected [${wanted.join(", ")}], got [${shape.join(", ")}]`);
    }
    if (!codes.includes(code)) lines.push(`dtype: '${name}' expected ${codes.join(", ")}, got ${code}`);
  }
  lines.push(...rules.problems ?? []);
  if (lines.length === 0) return;
  const count = lines.length === 1 ? "1 problem" : `${lines.length} problems`;
  throw new CheckpointError(where, `Tensors do not fit the ${what}, ${count}:\n  ${lines.join("\n  ")}`);
}
