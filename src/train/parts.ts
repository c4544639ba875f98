/**
 * Parts of a training that the configuration alone decides: loss scaler, dtype of frozen parameters.
 *
 * @module
 */
import type { Device } from "../device/device.ts";
import { type DType, dtypeFrom, float16 } from "../dtype.ts";
import { GradScaler } from "../optim/grad_scaler.ts";
import type { StepConfig } from "./config.ts";

/** The loss scaler of a run: in float16, whose smallest number is 6e-8, small gradients would vanish without it. */
export function scalerOf(device: Device, { precision }: StepConfig): GradScaler | undefined {
  return dtypeFrom(precision) === float16 ? new GradScaler(device) : undefined;
}

/** The dtype that frozen parameters are kept in; `file`: the dtype of their file. */
export function frozenDtypeOf({ frozenDtype }: StepConfig): "file" | DType {
  return frozenDtype === "file" ? frozenDtype : dtypeFrom(frozenDtype);
}
