/**
 * `npm run parity -- --axes`: every family over meshes with a tensor, a context, an expert or a pipeline axis, by FSDP, by FSDP with copies and by copies
 * alone, against one rank within what rounding explains; ranks against each other, and FSDP against copies, to the bit.
 *
 * @module
 */
import { runPooled } from "../../tests/support/rank_pool.ts";
import { ZOO, zooModels } from "../zoo/families.ts";
import { type AxesDistance, bitFaults, distanceOf } from "./distance.ts";
import type { FamilyOrders, FamilyReport } from "./training.ts";

/** What became of a family over a mesh. */
export interface AxesItem {
  readonly mesh: string;
  readonly family: string;
  readonly tied: boolean;
  readonly status: "pass" | "fail";
  /** True if all that must be the same to the bit is. */
  readonly bits: boolean;
  /** Distances to one rank, as parts of what rounding explains. */
  readonly distance?: AxesDistance;
  readonly reason?: string;
}

/** A mesh, and what shards or copies over its data axes. */
type Laid = Omit<FamilyOrders, "config"> & {
  readonly name: string;
  readonly tensor: number;
  /** The mesh before, whose bits it must have. */
  readonly twin?: string;
  /** The mesh before, whose bits it must have where no weight is tied: gradients of a tied one are added in another order. */
  readonly untiedTwin?: string;
};

/** Keys of configs that count experts. */
const EXPERT_COUNTS: readonly string[] = ["num_experts", "num_local_experts", "n_routed_experts"];

/** Families whose layers choose keys or draw routes: a context axis is refused. */
const REFUSED: readonly string[] = ["glm_moe_dsa", "phimoe"];

/** The families that a context axis can divide. */
export const DIVISIBLE: readonly string[] = ZOO.filter((family) => !REFUSED.includes(family));

/** Most ranks of a context axis for a family's small model: a layer of the gated delta rule has as many heads of keys. */
export function mostContext(family: string): number {
  return family.startsWith("qwen3_5") || family === "qwen3_next" ? 2 : 4;
}

/** The families with experts. */
export const MIXTURES: readonly string[] = ZOO.filter((family) => {
  return zooModels(family).some(({ hfConfig }) => Object.keys(hfConfig).some((key) => EXPERT_COUNTS.includes(key)));
});

const MESHES: readonly Laid[] = [
  { name: "tp 2", axes: { tensor: 2 }, tensor: 2 },
  { name: "tp 4", axes: { tensor: 4 }, tensor: 4 },
  { name: "fsdp 2 × tp 2", axes: { shard: 2, tensor: 2 }, tensor: 2 },
  {
    name: "fsdp 2 × tp 2, checkpointed",
    axes: { shard: 2, tensor: 2 },
    tensor: 2,
    checkpointing: true,
    twin: "fsdp 2 × tp 2",
  },
  { name: "ddp 2 × tp 2", axes: { shard: 2, tensor: 2 }, tensor: 2, mode: "ddp", twin: "fsdp 2 × tp 2" },
  { name: "tp 4 with sp", axes: { tensor: 4 }, tensor: 4, sequenceParallel: true },
  {
    name: "fsdp 2 × tp 2 with sp, checkpointed",
    axes: { shard: 2, tensor: 2 },
    tensor: 2,
    sequenceParallel: true,
    checkpointing: true,
  },
  { name: "tp 4 with LoRA", axes: { tensor: 4 }, tensor: 4, lora: true },
  {
    name: "fsdp 2 × tp 2 with sp and LoRA, checkpointed",
    axes: { shard: 2, tensor: 2 },
    tensor: 2,
    sequenceParallel: true,
    lora: true,
    checkpointing: true,
  },
  { name: "hsdp 2 × 1 × tp 2", axes: { replicate: 2, shard: 1, tensor: 2 }, tensor: 2 },
  { name: "cp 4", axes: { shard: 1, context: 4 }, tensor: 1 },
  { name: "fsdp 2 × cp 2", axes: { shard: 2, context: 2 }, tensor: 1 },
  { name: "ddp 2 × cp 2", axes: { shard: 2, context: 2 }, tensor: 1, mode: "ddp", twin: "fsdp 2 × cp 2" },
  { name: "cp 4 by a ring", axes: { shard: 1, context: 4 }, tensor: 1, commStrategy: "ring" },
  { name: "fsdp 2 × cp 2 by a ring", axes: { shard: 2, context: 2 }, tensor: 1, commStrategy: "ring" },
  {
    name: "fsdp 2 × cp 2 by a ring, checkpointed",
    axes: { shard: 2, context: 2 },
    tensor: 1,
    commStrategy: "ring",
    checkpointing: true,
    twin: "fsdp 2 × cp 2 by a ring",
  },
  {
    name: "ddp 2 × cp 2 by a ring",
    axes: { shard: 2, context: 2 },
    tensor: 1,
    commStrategy: "ring",
    mode: "ddp",
    twin: "fsdp 2 × cp 2 by a ring",
  },
  {
    name: "cp 2 by a ring × tp 2",
    axes: { shard: 1, context: 2, tensor: 2 },
    tensor: 2,
    commStrategy: "ring",
    checkpointing: true,
  },
  {
    name: "pp 2 × cp 2 by a ring",
    axes: { pipeline: 2, shard: 1, context: 2 },
    tensor: 1,
    commStrategy: "ring",
    stages: {},
  },
  { name: "fsdp 2 × cp 2 by exchanged heads", axes: { shard: 2, context: 2 }, tensor: 1, commStrategy: "ulysses" },
  { name: "ep 4", axes: { shard: 1, expert: 4 }, tensor: 1 },
  { name: "fsdp 2 × ep 2", axes: { shard: 2, expert: 2 }, tensor: 1 },
  { name: "hsdp 2 × 1 × ep 2", axes: { replicate: 2, shard: 1, expert: 2 }, tensor: 1, checkpointing: true },
  { name: "ep 2 × tp 2", axes: { shard: 1, expert: 2, tensor: 2 }, tensor: 2 },
  {
    name: "ep 2 × tp 2 with sp, checkpointed",
    axes: { shard: 1, expert: 2, tensor: 2 },
    tensor: 2,
    sequenceParallel: true,
    checkpointing: true,
  },
  { name: "ep over tp 2", axes: { tensor: 2 }, tensor: 2, expertParallel: true },
  {
    name: "ep over fsdp 2 × tp 2, checkpointed",
    axes: { shard: 2, tensor: 2 },
    tensor: 2,
    expertParallel: true,
    checkpointing: true,
  },
  { name: "ep over tp 4 with sp", axes: { tensor: 4 }, tensor: 4, expertParallel: true, sequenceParallel: true },
  { name: "ep 2 × ep over tp 2", axes: { shard: 1, expert: 2, tensor: 2 }, tensor: 2, expertParallel: true },
  { name: "ep over cp 2 × tp 2", axes: { shard: 1, context: 2, tensor: 2 }, tensor: 2, expertParallel: true },
  {
    name: "ep over pp 2 × tp 2",
    axes: { pipeline: 2, shard: 1, tensor: 2 },
    tensor: 2,
    expertParallel: true,
    stages: {},
  },
  { name: "ep 2 × cp 2", axes: { shard: 1, expert: 2, context: 2 }, tensor: 1 },
  {
    name: "ep 2 × cp 2, checkpointed",
    axes: { shard: 1, expert: 2, context: 2 },
    tensor: 1,
    checkpointing: true,
    twin: "ep 2 × cp 2",
  },
  { name: "cp 2 × tp 2", axes: { shard: 1, context: 2, tensor: 2 }, tensor: 2, checkpointing: true },
  { name: "single rows", axes: { shard: 1 }, tensor: 1, stages: {} },
  { name: "fsdp 2, single rows", axes: { shard: 2 }, tensor: 1, stages: {} },
  { name: "pp 2", axes: { pipeline: 2, shard: 1 }, tensor: 1, stages: {}, untiedTwin: "single rows" },
  { name: "pp 4", axes: { pipeline: 4, shard: 1 }, tensor: 1, stages: {}, twin: "pp 2" },
  {
    name: "pp 2, interleaved, checkpointed",
    axes: { pipeline: 2, shard: 1 },
    tensor: 1,
    stages: { schedule: "interleaved" },
    checkpointing: true,
    twin: "pp 2",
  },
  {
    name: "fsdp 2 × pp 2",
    axes: { pipeline: 2, shard: 2 },
    tensor: 1,
    stages: { split: "parameters" },
    untiedTwin: "fsdp 2, single rows",
  },
  {
    name: "ddp 2 × pp 2",
    axes: { pipeline: 2, shard: 2 },
    tensor: 1,
    stages: {},
    mode: "ddp",
    twin: "fsdp 2 × pp 2",
  },
  { name: "pp 2 × tp 2", axes: { pipeline: 2, shard: 1, tensor: 2 }, tensor: 2, stages: {} },
  { name: "pp 2 × cp 2", axes: { pipeline: 2, shard: 1, context: 2 }, tensor: 1, stages: {} },
  { name: "pp 2 × ep 2", axes: { pipeline: 2, shard: 1, expert: 2 }, tensor: 1, stages: {} },
  { name: "cp 2 × tp 2 with sp", axes: { shard: 1, context: 2, tensor: 2 }, tensor: 2, sequenceParallel: true },
];

/** Stages of a mesh. */
function stagesOf({ axes: { pipeline = 1 }, stages: { schedule } = {} }: Pick<Laid, "axes" | "stages">): number {
  return pipeline * (schedule === "interleaved" ? 2 : 1);
}

/** Blocks of a model, by its config. */
function layersOf(config: FamilyOrders["config"]): number {
  return Number(config["num_hidden_layers"] ?? config["n_layer"]);
}

/** True if ranks divide the heads of queries and of keys that a config counts. */
function headsDivide(config: FamilyOrders["config"], size: number): boolean {
  const counts = [config["num_attention_heads"] ?? config["n_head"], config["num_key_value_heads"]];
  return counts.every((count) => count === undefined || Number(count) % size === 0);
}

/** True for the report of a rank. */
export function isReport(value: unknown): value is FamilyReport {
  return typeof value === "object" && value !== null && "losses" in value && "gradients" in value;
}

async function train(orders: FamilyOrders): Promise<readonly FamilyReport[]> {
  const size = Object.values(orders.axes).reduce((all, length) => all * length, 1);
  const results = await runPooled(size, new URL("./rank.ts", import.meta.url), orders);
  return results.filter(isReport);
}

/** The meshes whose names contain a text, and those whose bits they must have. */
function meshesOf(part: string): readonly Laid[] {
  const chosen = new Set<string | undefined>();
  for (const { name, twin, untiedTwin } of MESHES.toReversed()) {
    if (name.includes(part) || chosen.has(name)) { for (const one of [name, twin, untiedTwin]) chosen.add(one); }
  }
  return MESHES.filter(({ name }) => chosen.has(name));
}

/** Trains families over meshes whose names contain `part`, and calls `tell` with each item. */
export async function axesParity(
  families: readonly string[],
  part: string,
  tell: (item: AxesItem) => void,
): Promise<void> {
  const meshes = meshesOf(part);
  for (const family of families.length === 0 ? ZOO : families) {
    for (const { tied, hfConfig: config } of zooModels(family)) {
      const [full] = await train({ config, axes: { shard: 1 } });
      const reports = async (isNeeded: boolean, more: Partial<FamilyOrders>): Promise<readonly FamilyReport[]> =>
        isNeeded ? await train({ config, axes: { shard: 1 }, ...more }) : [];
      const [single] = await reports(meshes.some(({ stages }) => stages !== undefined), { stages: {} });
      const [adapted] = await reports(meshes.some(({ lora = false }) => lora), { lora: true });
      const sharded = new Map<string, FamilyReport | undefined>();
      for (const { name: mesh, tensor, untiedTwin, twin = tied ? undefined : untiedTwin, ...laid } of meshes) {
        const { context = 1 } = laid.axes;
        if (stagesOf(laid) > layersOf(config)) continue;
        if (laid.commStrategy === "ulysses" && !headsDivide(config, context)) continue;
        if (context > 1 && (!DIVISIBLE.includes(family) || context > mostContext(family))) continue;
        if ((laid.axes["expert"] !== undefined || laid.expertParallel === true) && !MIXTURES.includes(family)) continue;
        const item = { mesh, family, tied };
        try {
          const all = await train({ config, ...laid });
          const alone = laid.stages !== undefined ? single : laid.lora ?? false ? adapted : full;
          if (alone === undefined || all.length === 0) throw new Error("a rank reported nothing");
          const faults = [...bitFaults(all, alone, tensor)];
          sharded.set(mesh, all[0]);
          const other = twin === undefined ? all[0] : sharded.get(twin);
          if (other?.last !== all[0]?.last || `${other?.norms}` !== `${all[0]?.norms}`) {
            faults.push(`not the bits of ${twin}`);
          }
          const distance = distanceOf(all, alone);
          const bits = faults.length === 0;
          const { loss, norm, gradient, worst } = distance;
          if (!(Math.max(loss, norm, gradient) <= 1)) {
            faults.push(`farther than rounding explains, most of all '${worst}'`);
          }
          const reason = faults.join("; ");
          tell({
            ...item,
            status: reason === "" ? "pass" : "fail",
            bits,
            distance,
            ...reason === "" ? {} : { reason },
          });
        } catch (error) {
          const reason = error instanceof Error ? error.message : String(error);
          tell({ ...item, status: "fail", bits: false, reason });
        }
      }
    }
  }
}
