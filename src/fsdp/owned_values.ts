/**
 * Copies a rank's elements of a parameter from its full values into the shard.
 *
 * @module
 */
import { Buffer } from "../device/buffer.ts";
import { convertElements } from "../device/convert.ts";
import { type DevicePtr, devicePtr } from "../device/device.ts";
import { copyAcross } from "../device/offload.ts";
import type { DType } from "../dtype.ts";
import { bytesOf } from "../quantized.ts";
import { elementSlices } from "../tensor/shard_layout.ts";
import type { ShardedStorage } from "./param.ts";
import type { FlatSegment } from "./segment.ts";

/** Copies this rank's elements of a parameter whose values lie at `from`, on the compute device, to where they are kept. */
export function copyOwned(
  segment: FlatSegment,
  { shard, localShard }: ShardedStorage,
  from: DevicePtr,
  fromDtype: DType,
): void {
  const { name, dtype, device, computeDevice, param } = segment;
  for (const { offset, length, local } of elementSlices(localShard)) {
    const dst = devicePtr(param + (shard.offset + local) * dtype.byteLength);
    const bytes = bytesOf(dtype, length);
    const given = devicePtr(from + offset * fromDtype.byteLength);
    using cast = dtype === fromDtype ? undefined : Buffer.allocate(computeDevice, bytes, `${name} cast`);
    if (cast !== undefined) {
      const conversion = { dstDtype: dtype, srcDtype: fromDtype, n: length };
      convertElements(computeDevice, { ...conversion, dst: cast.ptr, src: given });
    }
    const src = cast?.ptr ?? given;
    if (device === computeDevice) device.copy(dst, src, bytes);
    else copyAcross({ device, ptr: dst }, { device: computeDevice, ptr: src }, bytes);
  }
}
