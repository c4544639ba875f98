/**
 * The experts of tokens, and the weights of their outputs.
 *
 * @module
 */
import type { Scoring } from "../device/kernels/signature.ts";
import { KERNELS } from "../device/kernels/table.ts";
import { float32, int32 } from "../dtype.ts";
import { ArgumentError, ShapeError } from "../errors.ts";
import { matrixOf, sameShape } from "../shape.ts";
import { floatInput } from "./check.ts";
import type { ComputeOp } from "./op.ts";

/** Largest number of experts of a router. */
export const MAX_EXPERTS: number = KERNELS.route.values.experts.atMost;

/** Rule of a router. */
export interface RouteAttrs {
  /** Experts of each token. */
  readonly topK: number;
  /** Scores of the logits: see the kernel `route`. */
  readonly scoring: Scoring;
  /** Divides the weights of a token by their sum. */
  readonly normalize: boolean;
  /** Factor of the weights. */
  readonly scale: number;
  /** Number of groups of experts. */
  readonly groups: number;
  /** Number of groups whose experts are candidates. */
  readonly topGroups: number;
  /** Number of a group's best experts whose sum ranks the group. */
  readonly groupBest: 1 | 2;
  /** Largest distance of an expert from the best in `sparseMixer`. */
  readonly jitter: number;
  /** True if the last input is noise, by which `sparseMixer` draws experts. @default false */
  readonly sampled?: boolean;
}

/** The second input as a bias or as noise. */
function optionalInputs<T>(
  given: T | undefined,
  { sampled = false }: RouteAttrs,
): readonly [bias: T | undefined, noise: T | undefined] {
  return sampled ? [undefined, given] : [given, undefined];
}

/** `sparseMixer` has kernels for PhiMoE, which ignore all other options. */
function requireMixer(attrs: RouteAttrs, hasBias: boolean): void {
  const { scoring, topK, groups, normalize } = attrs;
  if (scoring !== "sparseMixer" || !(topK > 2 || groups > 1 || normalize || hasBias)) return;
  const asked = `${topK} experts, ${groups} groups, normalize ${normalize}, ${hasBias ? "a" : "no"} bias`;
  throw new ArgumentError(
    `Cannot route by 'sparseMixer' with ${asked}: it takes 1 or 2 experts of 1 group, neither normalized nor with a bias`,
  );
}

function requireFit(experts: number, { topK, groups, topGroups, groupBest }: RouteAttrs): void {
  const size = experts / groups;
  const fits = experts <= MAX_EXPERTS && Number.isInteger(size) && groupBest <= size && topGroups >= 1 &&
    topGroups <= groups && topK >= 1 && topK <= topGroups * size;
  if (fits) return;
  throw new ArgumentError(
    `Cannot route to ${topK} of ${experts} experts, in ${topGroups} of ${groups} groups by the best ${groupBest} of each: there ` +
      `must be so many, in groups of one size, and at most ${MAX_EXPERTS} in all`,
  );
}

/**
 * logits [rows, experts], optional float32 bias [experts], or noise float32 [rows, topK, 2, experts] in (0, 1) → weights float32
 * [rows, topK], experts int32 [rows, topK].
 */
export const routeOp: ComputeOp<RouteAttrs> = {
  name: "route",
  infer: (inputs, attrs) => {
    const logits = floatInput("route", inputs);
    const [bias, noise] = optionalInputs(inputs[1], attrs);
    const [rows, experts] = logits.shape;
    if (logits.ndim !== 2 || rows === undefined || experts === undefined) {
      throw new ShapeError("route", "logits must be [rows, experts]", logits.shape);
    }
    requireFit(experts, attrs);
    requireMixer(attrs, bias !== undefined);
    if (bias !== undefined && (bias.ndim !== 1 || bias.numel !== experts || bias.dtype !== float32)) {
      throw new ShapeError("route", "the bias must be float32 [experts]", logits.shape, bias.shape);
    }
    const ofNoise = [rows, attrs.topK, 2, experts];
    if (noise !== undefined && !(sameShape(noise.shape, ofNoise) && noise.dtype === float32)) {
      throw new ShapeError("route", `the noise must be float32 [${ofNoise.join(", ")}]`, logits.shape, noise.shape);
    }
    const shape = [rows, attrs.topK];
    return [{ shape, dtype: float32 }, { shape, dtype: int32 }];
  },
  forward: (call) => {
    const logits = call.dense(call.input(0));
    const { rows, cols: experts } = matrixOf(logits);
    const [weights, chosen] = [call.output(0), call.output(1)];
    const given = call.inputs > 1 ? call.dense(call.input(1)).ptr : undefined;
    const [bias, noise] = optionalInputs(given, call.attrs);
    const { sampled: _, ...attrs } = call.attrs;
    const sizes = { dtype: logits.dtype, rows, experts, ...attrs };
    call.device.kernels.route({ ...sizes, weights: weights.ptr, chosen: chosen.ptr, logits: logits.ptr, bias, noise });
    call.save(logits, chosen);
  },
  backward: (call) => {
    const [logits, chosen, dweights] = [call.saved(0), call.saved(1), call.dense(call.grad(0))];
    const { rows, cols: experts } = matrixOf(logits);
    const { topK, scoring, normalize, scale, jitter } = call.attrs;
    call.device.kernels.routeBackward({
      ...{ dtype: logits.dtype, rows, experts, topK, scoring, normalize, scale, jitter },
      ...{ dlogits: call.out(0, logits.dtype).ptr, dweights: dweights.ptr, chosen: chosen.ptr, logits: logits.ptr },
    });
  },
};
