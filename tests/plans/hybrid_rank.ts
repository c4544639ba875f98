/** A process that opens a model by a plan over what counts as its host, and describes it. @module */
import process from "node:process";
import { describeSharding, launch, openModel } from "../../mod.ts";
import { SIZES } from "./plan_ranks.ts";

await using run = await launch({ backend: "shm", cpuMath: "wasm", stagingBytes: 2 ** 20, joinTimeoutSeconds: 60 });
const model = await openModel(run, SIZES, { fsdpPlan: "auto", mesh: run.hybridMesh });
const [root] = describeSharding(model).units;
process.stdout.write(
  `${root?.worldSize} share, ${root?.replicas} copies, ${run.hybridMesh.axis("shard").worldRanks}\n`,
);
