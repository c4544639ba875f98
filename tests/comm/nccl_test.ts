/** The suite over doubles of NVIDIA's cards, one a rank. @module */
import { test } from "node:test";
import { conformPlanes } from "../conformance/planes.ts";
import { buildCudaTwin, lackingForTwin } from "../native/cuda/build.ts";
import { shareOf } from "../support/share.ts";

const lacking = lackingForTwin();
if (lacking !== undefined) test("nccl", { skip: lacking }, () => {});
else conformPlanes("nccl", shareOf([4, 2]), { over: "nccl", variables: (await buildCudaTwin()).variables });
