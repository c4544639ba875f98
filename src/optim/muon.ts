/**
 * Muon (Jordan et al. 2024), in the order of operations of PyTorch's `torch/optim/_muon.py`, with AdamW beside it for parameters that
 * are no hidden matrices.
 *
 * @module
 */
import { type DevicePtr, devicePtr } from "../device/device.ts";
import { copyAcross } from "../device/offload.ts";
import { bfloat16, float32 } from "../dtype.ts";
import { ArgumentError, InternalError } from "../errors.ts";
import { isWithin } from "../held.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { valueText } from "../words.ts";
import { adamwRule, requireAdamW } from "./adamw.ts";
import type { OptimizerSettings, ParamGroup, ParamGroupOptions } from "./groups.ts";
import { matrixSizes, OwnedMatrices } from "./matrix_owners.ts";
import { type Coefficients, prepareOrthogonalization } from "./newton_schulz.ts";
import { Optimizer } from "./optimizer.ts";
import { isActive } from "./records.ts";
import type { UpdateCall, UpdateRule } from "./rule.ts";
import type { WorkMemory } from "./work_memory.ts";

/** Names of the functions that fit the learning rate to a matrix of r rows and c columns; the values are PyTorch's names. */
export const ADJUST_LR: readonly ["original", "match_rms_adamw", "spectral_unclamped"] = [
  "original", // √max(1, r/c)
  "match_rms_adamw", // 0.2 √max(r, c): a rate that suits AdamW suits the matrix
  "spectral_unclamped", // √(r/c)
];
/** Name of a function that fits the learning rate to a matrix. */
export type AdjustLr = typeof ADJUST_LR[number];

/** Settings of Muon; the defaults are PyTorch's. */
export interface MuonSettings extends OptimizerSettings {
  /** Step size. @default 1e-3 */
  learningRate: number;
  /** Decoupled weight decay. @default 0.1 */
  weightDecay: number;
  /** Decay of the momentum. @default 0.95 */
  readonly momentum: number;
  /** Nesterov's momentum. @default true */
  readonly nesterov: boolean;
  /** Coefficients of a Newton–Schulz step. @default [3.4445, -4.775, 2.0315] */
  readonly nsCoefficients: Coefficients;
  /** Newton–Schulz steps. @default 5 */
  readonly nsSteps: number;
  /** Least norm that a matrix is divided by. @default 1e-7 */
  readonly nsEps: number;
  /** Factor on the learning rate of a matrix. @default `original` */
  readonly adjustLr: AdjustLr;
  /** False for a group that AdamW updates, as embeddings, heads, norms and biases. @default true */
  readonly useMuon: boolean;
  /** AdamW's decay of the moments, for groups that it updates. @default [0.9, 0.999] */
  readonly betas: readonly [number, number];
  /** AdamW's eps, for groups that it updates. @default 1e-8 */
  readonly eps: number;
}

/** Options of {@link Muon}. */
export type MuonOptions = Partial<MuonSettings>;

/** The factor on the learning rate of a matrix. */
function rateFactor(adjust: AdjustLr, rows: number, cols: number): number {
  if (adjust === "match_rms_adamw") return 0.2 * Math.sqrt(Math.max(rows, cols));
  return Math.sqrt(adjust === "original" ? Math.max(1, rows / cols) : rows / cols);
}

const MOMENTUM = "momentum_buffer";

const ADAMW: UpdateRule<MuonSettings> = adamwRule();

const MUON: UpdateRule<MuonSettings> = {
  states: [{ name: MOMENTUM }],
  // The kernel adds the decay to the update, which it multiplies by the fitted rate.
  record({ weightDecay, adjustLr }, learningRate, parameter) {
    const { rows, cols } = matrixSizes(parameter);
    const factor = rateFactor(adjustLr, rows, cols);
    return [learningRate * factor, weightDecay / factor, 0, 0, 0];
  },
  prepare: prepareMatrices,
};

/** Sends the momentum of each matrix to its owner, which orthogonalizes it, and updates with what the owner sends back. */
function prepareMatrices({ device, bucket, args, state }: UpdateCall<MuonSettings>, work: WorkMemory): () => void {
  const { flatShard, members } = bucket;
  const active = members.filter(isActive);
  const groups = new Map(active.map(({ parameter, group }) => [parameter, group]));
  const matrices = new OwnedMatrices(
    active.map(({ parameter }) => parameter),
    members.map(({ parameter }) => parameter),
    bfloat16,
    "Muon's matrices",
    work,
  );
  const longest = Math.max(...active.map(({ parameter: { storage } }) => storage.shard.numel));
  const updates = work.plan(device, flatShard.length * float32.byteLength);
  const direction = work.plan(device, longest * float32.byteLength);
  const narrow = active.some(({ parameter }) => parameter.device !== device)
    ? work.plan(device, longest * bfloat16.byteLength)
    : undefined;
  const orthogonalizations = work.inTurn([...matrices.owned].map(([parameter, matrix]) => (): () => void => {
    const { rows, cols } = matrixSizes(parameter);
    const group = groups.get(parameter);
    if (group === undefined) throw new InternalError(`'${parameter.fqn}' is owned and not updated`);
    const { nsCoefficients: coefficients, nsSteps: steps, nsEps: eps } = group;
    const orthogonalize = prepareOrthogonalization(work, parameter.device, rows, cols, { coefficients, steps, eps });
    return () => orthogonalize(matrix.ptr);
  }));
  const writeMomentum = ({ parameter, group: { momentum, nesterov }, offset: first }: typeof active[number]): void => {
    const { offset, numel: n } = parameter.storage.shard;
    if (n === 0) return;
    const src = devicePtr(flatShard.grad + offset * float32.byteLength);
    const buffer = devicePtr(state(MOMENTUM) + first * float32.byteLength);
    device.kernels.lerp({ n, weight: 1 - momentum, dst: buffer, src, gate: args.gate });
    const from = nesterov ? direction.ptr : buffer;
    if (nesterov) {
      device.copy(direction.ptr, src, n * float32.byteLength);
      device.kernels.lerp({ n, weight: momentum, dst: direction.ptr, src: buffer });
    }
    const dst = narrow === undefined ? matrices.part(parameter) : narrow.ptr;
    device.kernels.cast({ dstDtype: bfloat16, srcDtype: float32, n, dst, src: from });
    if (narrow !== undefined) matrices.write(parameter, { device, ptr: narrow.ptr });
  };
  const readUpdate = ({ parameter }: typeof active[number]): void => {
    const { offset, numel: n } = parameter.storage.shard;
    if (n === 0) return;
    let src: DevicePtr = matrices.part(parameter);
    if (narrow !== undefined) {
      copyAcross({ device, ptr: narrow.ptr }, { device: parameter.device, ptr: src }, n * bfloat16.byteLength);
      src = narrow.ptr;
    }
    const dst = devicePtr(updates.ptr + offset * float32.byteLength);
    device.kernels.cast({ dstDtype: float32, srcDtype: bfloat16, n, dst, src });
  };
  return () => {
    for (const member of active) writeMomentum(member);
    matrices.sendToOwners();
    for (const orthogonalize of orthogonalizations) orthogonalize();
    matrices.returnToRanks();
    for (const member of active) readUpdate(member);
    device.kernels.sgd({ ...args, grad: updates.ptr });
  };
}

/**
 * Muon over float32 master weights. Each matrix is gathered in bfloat16 on one of the ranks that share it, which orthogonalizes it: so
 * the weights are bitwise equal to those of one rank.
 *
 * @example
 * ```ts
 * import { Muon } from "fullyshard";
 * import { openDevice } from "fullyshard/device";
 * import { initializeParameters, Linear } from "fullyshard/nn";
 * const layer = new Linear(await openDevice("cpu"), 4, 4, { bias: true });
 * initializeParameters(layer, 0);
 * const { weight, bias } = layer;
 * new Muon([{ parameters: [weight] }, { parameters: bias === undefined ? [] : [bias], useMuon: false }], { learningRate: 0.02 });
 * ```
 */
export class Muon extends Optimizer<MuonSettings> {
  /**
   * Omitted options have the defaults of PyTorch's Muon, and of its AdamW for groups with `useMuon: false`.
   *
   * @throws {ArgumentError} if a setting is out of range, or a parameter that Muon is to update is no matrix
   */
  constructor(parameters: Iterable<Parameter> | Iterable<ParamGroupOptions<MuonSettings>>, options: MuonOptions = {}) {
    const defaults: MuonSettings = {
      ...{ learningRate: 1e-3, weightDecay: 0.1, momentum: 0.95, nesterov: true },
      ...{ nsCoefficients: [3.4445, -4.775, 2.0315], nsSteps: 5, nsEps: 1e-7, adjustLr: "original" },
      ...{ useMuon: true, betas: [0.9, 0.999], eps: 1e-8 },
    };
    super(parameters, defaults, options);
  }

  /** Refuses settings that make no sense, and what is no matrix. */
  protected override check(group: ParamGroup<MuonSettings>): void {
    requireAdamW(group);
    const { momentum, nsCoefficients, nsSteps, nsEps, adjustLr, useMuon, nesterov } = group;
    const areSound = isWithin(momentum, 0, 1) && isWithin(nsEps, 0) && nsCoefficients.length === 3 &&
      nsCoefficients.every(Number.isFinite) && Number.isInteger(nsSteps) && nsSteps >= 1 && nsSteps < 100;
    if (!areSound || ![useMuon, nesterov].every((value) => typeof value === "boolean")) {
      throw new ArgumentError(
        `Cannot use momentum ${valueText(momentum)}, nesterov ${valueText(nesterov)}, nsCoefficients [${
          nsCoefficients.map(valueText).join(", ")
        }], nsSteps ${valueText(nsSteps)}, nsEps ${valueText(nsEps)}, useMuon ${
          valueText(useMuon)
        }: expected a momentum from 0 to 1, three coefficients, 1 to 99 steps, eps from 0, and switches`,
      );
    }
    if (!ADJUST_LR.includes(adjustLr)) {
      throw new ArgumentError(`Cannot use adjustLr ${valueText(adjustLr)}: expected ${ADJUST_LR.join(", ")}`);
    }
    const other = useMuon ? group.parameters.find(({ globalShape }) => globalShape.length !== 2) : undefined;
    if (other === undefined) return;
    throw new ArgumentError(
      `Cannot update '${other.fqn}' [${
        other.globalShape.join(", ")
      }] by Muon: expected a matrix. Give it a group with useMuon: false`,
    );
  }

  /** Names of the settings that only it has. */
  protected override otherSettings(): Readonly<Record<Exclude<keyof MuonSettings, keyof OptimizerSettings>, true>> {
    return {
      ...{ momentum: true, nesterov: true, nsCoefficients: true, nsSteps: true, nsEps: true, adjustLr: true },
      ...{ useMuon: true, betas: true, eps: true },
    };
  }

  /** Muon's rule, or AdamW's. */
  protected override ruleOf(_parameter: Parameter, { useMuon }: ParamGroup<MuonSettings>): UpdateRule<MuonSettings> {
    return useMuon ? MUON : ADAMW;
  }
}
