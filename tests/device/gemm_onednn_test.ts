/**
 * What is oneDNN's own: the same bits wherever operands lie, its refusals by name, its version, and what is said where it is
 * missing. Its products pass the suite of devices.
 *
 * @module
 */
import assert from "node:assert/strict";
import { after, describe, it } from "node:test";
import { Allocator } from "../../src/device/allocator.ts";
import { type DevicePtr, devicePtr } from "../../src/device/device.ts";
import type { ArgsOf } from "../../src/device/kernels/table.ts";
import { openWasmDevice } from "../../src/device/wasm/device.ts";
import { openOnednn } from "../../src/device/wasm/gemm_onednn.ts";
import { bfloat16, type DType, float32 } from "../../src/dtype.ts";
import { LibraryNotFoundError, NativeError } from "../../src/errors.ts";
import { openProvider } from "../../src/ffi/mod.ts";
import { coreCount } from "../../src/runtime/processes.ts";
import { Bed } from "../conformance/kernels/bed.ts";
import { each } from "../conformance/kernels/case.ts";

const device = await openWasmDevice({ cpuMath: "wasm", memoryBytes: 2 ** 26 });
const { memory, kernels } = device;
const bed = new Bed(device);
const options = { memory, kernels, scratch: device.allocator, ranksOnHost: coreCount() };
const onednn = await openOnednn(options).catch((error) => {
  if (error instanceof LibraryNotFoundError) return undefined;
  throw error;
});
after(() => onednn?.dispose());
const absent = onednn === undefined && "oneDNN is not installed";
const noBfloat16 = absent || (onednn?.hasBfloat16 === false && "this processor has no bfloat16 products");

/** A product of dense matrices, the second one transposed, whose operands lie `shift` elements behind a 256-byte boundary. */
function product(dtype: DType, m: number, n: number, k: number, shift: number): ArgsOf<"gemm"> {
  const put = (type: DType, values: readonly number[]): DevicePtr => {
    const padded = [...each(shift, () => 0), ...values];
    const block = device.allocator.allocate((padded.length + 1) * type.byteLength, "test");
    device.copy(block, bed.put(type, padded), padded.length * type.byteLength);
    return devicePtr(block + shift * type.byteLength);
  };
  const [a, b] = [each(m * k, (i) => Math.sin(i)), each(n * k, (i) => Math.cos(i))];
  const strides = { lda: k, ldb: k, ldc: n, strideA: 0, strideB: 0, strideC: 0, batch: 1 };
  const arrays = { a: put(dtype, a), b: put(dtype, b), c: put(float32, each(m * n, () => 0)) };
  return { dtype, outDtype: float32, transA: false, transB: true, m, n, k, alpha: 1, beta: 0, ...strides, ...arrays };
}

describe("OnednnGemm", () => {
  for (const dtype of [float32, bfloat16]) {
    const skip = dtype === bfloat16 ? noBfloat16 : absent;
    it(`gemm() gives the same bits again and at other addresses, ${dtype.name}`, { skip }, () => {
      for (const [m, n, k] of [[96, 200, 310], [256, 64, 1000], [5, 7, 513]] as const) {
        const bits = (shift: number): Uint8Array => {
          const args = product(dtype, m, n, k, shift);
          onednn?.gemm(args);
          return bed.bytes(args.c, m * n * float32.byteLength);
        };
        const first = bits(0);
        for (const shift of [0, 1, 3, 16]) assert.deepEqual(bits(shift), first);
      }
    });
  }

  it("gemm() reports a refusal of oneDNN by its name", { skip: absent }, () => {
    assert.throws(() => onednn?.gemm({ ...product(float32, 3, 4, 5, 0), lda: 1 }), (error) => {
      assert.ok(error instanceof NativeError);
      assert.equal(error.code, "dnnl_invalid_arguments");
      assert.match(error.message, /dnnl_sgemm\(78, 84, 3, 4, 5, 1, 0x/);
      return true;
    });
  });

  it("gemm() gives back the memory of its float32 sums", { skip: noBfloat16 }, () => {
    const args = product(bfloat16, 8, 8, 8, 0);
    const { inUse } = device.allocator.stats;
    onednn?.gemm({ ...args, outDtype: bfloat16 });
    assert.equal(device.allocator.stats.inUse, inUse);
  });

  it("version is read", { skip: absent }, () => assert.match(onednn?.version ?? "", /^[23]\.\d+\.\d+$/));
});

describe("openOnednn()", () => {
  it("throws LibraryNotFoundError naming the one path it was told to load", async () => {
    const scratch = new Allocator("test", 65536, 2 ** 20);
    const path = "/nonexistent/libdnnl.so.3";
    await assert.rejects(openOnednn({ ...options, scratch, path, provider: await openProvider() }), (error) => {
      assert.ok(error instanceof LibraryNotFoundError);
      assert.deepEqual(error.tried, [{ path, reason: "no such file" }]);
      assert.match(error.message, /onednn-cpu-gomp/);
      return true;
    });
  });
});
