/** The suite over doubles of NVIDIA's cards on what counts as two hosts, whose ranks meet at a store. @module */
import { conformPlanes } from "../conformance/planes.ts";
import { buildCudaTwin, lackingForTwin } from "../native/cuda/build.ts";
import { sharedTest as test } from "../support/share.ts";

const lacking = lackingForTwin();
if (lacking !== undefined) test("nccl of several hosts", { skip: lacking }, () => {});
else {
  const { variables } = await buildCudaTwin();
  // Each scenario's world has a store of its own, whose Worker takes a while to start.
  conformPlanes("nccl of two hosts", [2], { over: "nccl", variables, planes: { ranksPerHost: 1 } }, 600_000);
}
