/**
 * Dtypes that a parallelism computes and reduces in, whatever its parameters are kept in.
 *
 * @module
 */
import { COMPUTE_DTYPES, type DType, float32, requireDType } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import type { BoundaryDtypes } from "../nn/module.ts";

/** Dtypes of what is sharded or replicated together (PyTorch's `MixedPrecisionPolicy`). Master weights are float32. */
export interface MixedPrecision {
  /** What parameters are computed in, and gathered. @default float32 */
  readonly paramDtype?: DType;
  /** What gradients are reduced in; sums are float32 either way. @default float32 */
  readonly reduceDtype?: DType;
  /** What the module's float outputs are cast to. @default as they are */
  readonly outputDtype?: DType;
  /** Whether float inputs are cast to `paramDtype`, where that is given; module buffers never are. @default true */
  readonly castForwardInputs?: boolean;
}

/** Dtypes with nothing left open. */
export interface ResolvedPrecision extends Required<Pick<MixedPrecision, "paramDtype" | "reduceDtype">> {
  /** What is cast on the way into the module and out of it. */
  readonly boundary: BoundaryDtypes;
}

/** The dtypes of what is sharded or replicated together, by name. */
export interface DtypeLedger {
  /** What peers gather, or what is computed with where nothing is gathered. */
  readonly storage: string;
  /** What is computed in. */
  readonly compute: string;
  /** What gradients travel in. */
  readonly reduce: string;
  /** What optimizers update. */
  readonly master: string;
  /** What gradients are once they are reduced. */
  readonly gradient: string;
}

/** Where each dtype is used. */
export function ledgerOf({ paramDtype, reduceDtype }: ResolvedPrecision): DtypeLedger {
  const [storage, reduce, master] = [paramDtype.name, reduceDtype.name, float32.name];
  return { storage, compute: storage, reduce, master, gradient: master };
}

/**
 * Fills in the defaults.
 *
 * @throws {ArgumentError} for dtypes that nothing computes in
 * @throws {DTypeError} for what is no dtype, such as a name
 */
export function resolvePrecision(precision: MixedPrecision = {}): ResolvedPrecision {
  const { paramDtype = float32, reduceDtype = float32, outputDtype, castForwardInputs = true } = precision;
  for (const [name, dtype] of Object.entries({ paramDtype, reduceDtype, outputDtype })) {
    if (dtype === undefined) continue;
    requireDType(name, dtype);
    if (!COMPUTE_DTYPES.includes(dtype)) {
      const allowed = COMPUTE_DTYPES.map((one) => one.name).join(", ");
      throw new ArgumentError(`Cannot use ${dtype.name} as ${name}: it must be ${allowed}`);
    }
  }
  const inputs = castForwardInputs ? precision.paramDtype : undefined;
  return { paramDtype, reduceDtype, boundary: { inputs, outputs: outputDtype } };
}
