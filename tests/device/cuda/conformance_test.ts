/**
 * A CUDA device on doubles of NVIDIA's libraries passes the suite of devices, and nothing of it is a race: see
 * `tests/native/cuda`.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openCudaDevice } from "../../../src/device/cuda/device.ts";
import { CASES, conformDevice } from "../../conformance/device.ts";
import { buildCudaTwin, lackingForTwin, twinReports } from "../../native/cuda/build.ts";
import { onlyInAll, shareOf } from "../../support/share.ts";

const lacking = lackingForTwin();
const twin = lacking === undefined ? await buildCudaTwin() : undefined;
const device = twin === undefined
  ? undefined
  : await openCudaDevice(0, { environment: twin.environment, memoryBytes: 2 ** 28 });
// The double computes the same whichever runtime calls it, and each call is packed by the same code. The gate takes some of a kernel's
// cases, as the double is slow.
const [EVERY = 8] = onlyInAll([1]);
conformDevice("twin of CUDA", device, `it needs ${lacking}`, {}, shareOf(Object.keys(CASES)), EVERY);

test("no kernel of the suite raced", { skip: lacking }, () => {
  assert.equal(twinReports(twin ?? assert.fail()), "");
});
