/**
 * `npm run parity -- --axes`: every family over meshes with a tensor axis, by FSDP, by FSDP with copies and by copies alone, against one
 * rank within what rounding explains; ranks against each other, and FSDP against copies, to the bit.
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
type Laid = Omit<FamilyOrders, "config"> & { readonly name: string; readonly tensor: number };

const MESHES: readonly Laid[] = [
  { name: "tp 2", axes: { tensor: 2 }, tensor: 2 },
  { name: "tp 4", axes: { tensor: 4 }, tensor: 4 },
  { name: "fsdp 2 × tp 2", axes: { shard: 2, tensor: 2 }, tensor: 2 },
  { name: "fsdp 2 × tp 2, checkpointed", axes: { shard: 2, tensor: 2 }, tensor: 2, checkpointing: true },
  { name: "ddp 2 × tp 2", axes: { shard: 2, tensor: 2 }, tensor: 2, mode: "ddp" },
  { name: "hsdp 2 × 1 × tp 2", axes: { replicate: 2, shard: 1, tensor: 2 }, tensor: 2 },
];

function isReport(value: unknown): value is FamilyReport {
  return typeof value === "object" && value !== null && "losses" in value && "gradients" in value;
}

async function train(orders: FamilyOrders): Promise<readonly FamilyReport[]> {
  const size = Object.values(orders.axes).reduce((all, length) => all * length, 1);
  const results = await runPooled(size, new URL("./rank.ts", import.meta.url), orders);
  return results.filter(isReport);
}

/** Trains families over all meshes, and calls `tell` with each item. */
export async function axesParity(families: readonly string[], tell: (item: AxesItem) => void): Promise<void> {
  for (const family of families.length === 0 ? ZOO : families) {
    for (const { tied, hfConfig: config } of zooModels(family)) {
      const [alone] = await train({ config, axes: { shard: 1 } });
      let sharded: FamilyReport | undefined;
      for (const { name: mesh, tensor, ...laid } of MESHES) {
        const item = { mesh, family, tied };
        try {
          const all = await train({ config, ...laid });
          if (alone === undefined || all.length === 0) throw new Error("a rank reported nothing");
          const faults = [...bitFaults(all, alone, tensor)];
          if (mesh === "fsdp 2 × tp 2") sharded = all[0];
          const isTwin = laid.mode === "ddp" || laid.checkpointing === true;
          if (isTwin && (sharded?.last !== all[0]?.last || `${sharded?.norms}` !== `${all[0]?.norms}`)) {
            faults.push("not the bits of fsdp 2 × tp 2");
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
