/**
 * Values that a shard takes over from memory that has all of a parameter.
 *
 * @module
 */
import { Buffer } from "../device/buffer.ts";
import { type DevicePtr, devicePtr } from "../device/device.ts";
import { copyAcross } from "../device/offload.ts";
import { float32 } from "../dtype.ts";
import { elementSlices } from "../tensor/shard_layout.ts";
import type { ShardedStorage } from "./param.ts";
import type { FlatSegment } from "./segment.ts";

/** Copies this rank's elements of a parameter whose float32 values lie at `from`, on the compute device, to where they are kept. */
export function copyOwned(segment: FlatSegment, { shard, localShard }: ShardedStorage, from: DevicePtr): void {
  const { name, dtype, device, computeDevice, param } = segment;
  const width = dtype.byteLength;
  for (const { offset, length, local } of elementSlices(localShard)) {
    const dst = devicePtr(param + (shard.offset + local) * width);
    const wide = devicePtr(from + offset * float32.byteLength);
    using cast = dtype === float32 ? undefined : Buffer.allocate(computeDevice, length * width, `${name} cast`);
    if (cast !== undefined) {
      computeDevice.kernels.cast({ dstDtype: dtype, srcDtype: float32, n: length, dst: cast.ptr, src: wide });
    }
    const src = cast?.ptr ?? wide;
    if (device === computeDevice) device.copy(dst, src, length * width);
    else copyAcross({ device, ptr: dst }, { device: computeDevice, ptr: src }, length * width);
  }
}
