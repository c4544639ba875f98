/** The suite over doubles of NVIDIA's cards, one a rank; also on what counts as two hosts, whose ranks meet at a store. @module */
import { test } from "node:test";
import { conformPlanes } from "../conformance/planes.ts";
import { buildCudaTwin, lackingForTwin } from "../native/cuda/build.ts";
import { shareOf, usualFirst } from "../support/share.ts";

const lacking = lackingForTwin();
if (lacking !== undefined) test("nccl", { skip: lacking }, () => {});
else {
  const { variables } = await buildCudaTwin();
  for (
    const [name, size, planes] of shareOf(
      usualFirst(
        [["nccl", 4, {}], ["nccl of two hosts", 2, { ranksPerHost: 1 }], ["nccl", 2, {}]] as const,
        (place) => place > 0,
      ),
    )
  ) {
    // Each scenario's world on two hosts has a store of its own, whose Worker takes a while to start.
    conformPlanes(name, [size], { over: "nccl", variables, planes }, 600_000);
  }
}
