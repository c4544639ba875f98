/**
 * Casts to float16 and back, against the language's own.
 *
 * @module
 */
import assert from "node:assert/strict";
import { float16, float32 } from "../../../src/dtype.ts";
import { each, pick, type Properties } from "./case.ts";

/** Tests of float16. */
export const FLOAT16_PROPERTIES: Properties = {
  "cast() rounds to the nearest float16, ties to even, subnormals and infinities included": (bed) => {
    const values = [
      ...[0, -0, 1 + 2 ** -11, 1 + 3 * 2 ** -11, 1 + 2 ** -11 + 2 ** -20, 65504, 65519.996, 65520, -65520, 3e38],
      ...[2 ** -14, 2 ** -14 - 2 ** -25, 2 ** -24, 2 ** -25, 2 ** -25 + 2 ** -40, 3 * 2 ** -25, -1e-40, Infinity, NaN],
    ];
    const n = values.length;
    const [wide, narrow] = [bed.put(float32, values), bed.room(float16, n)];
    bed.device.kernels.cast({ dstDtype: float16, srcDtype: float32, n, dst: narrow, src: wide });
    bed.device.kernels.cast({ dstDtype: float32, srcDtype: float16, n, dst: wide, src: narrow });
    for (const got of [bed.get(float16, narrow, n), bed.get(float32, wide, n)]) {
      got.forEach((v, i) => assert.ok(Object.is(v, Math.f16round(pick(values, i))), `cast of ${values[i]}`));
    }
  },
  "cast() widens every float16 exactly, and gives its bits back": (bed) => {
    const n = 2 ** 16;
    const bits = Uint16Array.from(each(n, (i) => i));
    const [narrow, wide, back] = [bed.room(float16, n), bed.room(float32, n), bed.room(float16, n)];
    bed.device.copyIn(narrow, new Uint8Array(bits.buffer));
    bed.device.kernels.cast({ dstDtype: float32, srcDtype: float16, n, dst: wide, src: narrow });
    bed.device.kernels.cast({ dstDtype: float16, srcDtype: float32, n, dst: back, src: wide });
    const values = new Float16Array(bits.buffer);
    const widened = new Float32Array(bed.bytes(wide, 4 * n).buffer);
    const returned = new Uint16Array(bed.bytes(back, 2 * n).buffer);
    for (let i = 0; i < n; i++) {
      if (!Object.is(widened[i], values[i])) assert.fail(`${i} is ${widened[i]}, expected ${values[i]}`);
      if (Number.isNaN(values[i]) ? !Number.isNaN(widened[i]) : returned[i] !== i) {
        assert.fail(`${i} came back as ${returned[i]}`);
      }
    }
  },
};
