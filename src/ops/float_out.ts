/**
 * Gradients that kernels write in float32 whatever the dtype of what they belong to.
 *
 * @module
 */
import type { DevicePtr } from "../device/device.ts";
import { float32 } from "../dtype.ts";
import { castTo } from "./cast.ts";
import type { BackwardCall } from "./op.ts";

/** Lets `launch` write float32 to the gradient of input i, converting afterwards where its place is narrower. */
export function writeFloat32<A>(call: BackwardCall<A>, i: number, launch: (out: DevicePtr) => void): void {
  const out = call.out(i);
  if (out.dtype === float32) return launch(out.ptr);
  const wide = call.empty(out.shape, float32);
  launch(wide.ptr);
  castTo(out, wide);
}
