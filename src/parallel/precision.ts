/**
 * The dtypes in which a parallelism computes and reduces; master weights are float32.
 *
 * @module
 */
import { requireSwitch } from "../config/known_values.ts";
import { requireKnownKeys } from "../config/known_keys.ts";
import { COMPUTE_DTYPES, type DType, float32, requireDType } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import type { BoundaryDtypes } from "../nn/module.ts";

/** Dtypes of a sharded or replicated module (PyTorch's `MixedPrecisionPolicy`). Master weights are float32. */
export interface MixedPrecision {
  /** The dtype in which parameters are gathered and computed with. @default float32 */
  readonly paramDtype?: DType;
  /** The dtype in which gradients are sent to other ranks; sums are float32 in any case. @default float32 */
  readonly reduceDtype?: DType;
  /** The dtype to which the module's float outputs are cast. @default they are not cast */
  readonly outputDtype?: DType;
  /** Casts float inputs to `paramDtype`, where that is given; module buffers are never cast. @default true */
  readonly castForwardInputs?: boolean;
}

/** Dtypes with all defaults. */
export interface ResolvedPrecision extends Required<Pick<MixedPrecision, "paramDtype" | "reduceDtype">> {
  /** The dtypes to which inputs and outputs of the module are cast. */
  readonly boundary: BoundaryDtypes;
}

/** The dtypes of a sharded or replicated module, by name. */
export interface DtypeLedger {
  /** Parameters as ranks gather them, or as they are computed with where nothing is gathered. */
  readonly storage: string;
  /** Activations, and parameters that are computed with. */
  readonly compute: string;
  /** Gradients as they are sent to other ranks. */
  readonly reduce: string;
  /** Parameters as optimizers update them. */
  readonly master: string;
  /** Reduced gradients. */
  readonly gradient: string;
}

/** The names of a module's dtypes, by their use. */
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
  const known = { paramDtype: true, reduceDtype: true, outputDtype: true, castForwardInputs: true } as const;
  requireKnownKeys("set the precision", precision, known);
  const { paramDtype = float32, reduceDtype = float32, outputDtype, castForwardInputs = true } = precision;
  requireSwitch("set the precision", "castForwardInputs", castForwardInputs);
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
