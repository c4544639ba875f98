/**
 * Checkpoints from each of twelve meshes to each other one, and of a family with experts from fifteen: what is loaded has the bits that were saved, and the training goes on as the
 * uninterrupted one, to the bit on the same mesh and within 1e-5 on others.
 *
 * @module
 */
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { runPooled } from "../../tests/support/rank_pool.ts";
import { MIXTURES } from "../axes/parity.ts";
import type { FamilyOrders } from "../axes/training.ts";
import type { MeshOrders, MeshReport } from "./training.ts";

/** A checkpoint that went from a mesh to a mesh. */
export interface MeshItem {
  readonly from: string;
  readonly to: string;
  readonly status: "pass" | "fail";
  /** True if weights and states of the optimizer are loaded to the bit. */
  readonly bits: boolean;
  /** Largest relative distance of the losses and norms that follow from the uninterrupted ones. */
  readonly distance?: number;
  readonly reason?: string;
}

type Mesh = Omit<FamilyOrders, "config">;

/** Meshes of at most four ranks. */
const MESHES: readonly (readonly [name: string, mesh: Mesh])[] = [
  ["one rank", { axes: { shard: 1 } }],
  ["fsdp 2", { axes: { shard: 2 } }],
  ["fsdp 4", { axes: { shard: 4 } }],
  ["ddp 2", { axes: { shard: 2 }, mode: "ddp" }],
  ["hsdp 2 × 2", { axes: { replicate: 2, shard: 2 } }],
  ["tp 2", { axes: { tensor: 2 } }],
  ["tp 4", { axes: { tensor: 4 } }],
  ["fsdp 2 × tp 2", { axes: { shard: 2, tensor: 2 } }],
  ["fsdp 2 × cp 2", { axes: { shard: 2, context: 2 } }],
  ["cp 2 × tp 2", { axes: { shard: 1, context: 2, tensor: 2 } }],
  ["pp 2", { axes: { pipeline: 2, shard: 1 }, stages: {} }],
  ["fsdp 2 × pp 2", { axes: { pipeline: 2, shard: 2 }, stages: {} }],
];

/** Meshes whose ranks divide experts. */
const EXPERT_MESHES: typeof MESHES = [
  ["fsdp 2 × ep 2", { axes: { shard: 2, expert: 2 } }],
  ["ep 2 × tp 2", { axes: { shard: 1, expert: 2, tensor: 2 } }],
  ["ep 2 × ep over tp 2", { axes: { shard: 1, expert: 2, tensor: 2 }, expertParallel: true }],
  ["ep 2 × cp 2", { axes: { shard: 1, expert: 2, context: 2 } }],
];

/** The meshes of a family, by name. */
export function meshesOf(family: string): ReadonlyMap<string, Mesh> {
  return new Map(MIXTURES.includes(family) ? [...MESHES, ...EXPERT_MESHES] : MESHES);
}

/** Largest distance on another mesh, which adds in another order. */
const MOST = 1e-5;

function isReport(value: unknown): value is MeshReport {
  return typeof value === "object" && value !== null && "losses" in value && "states" in value;
}

async function train(orders: MeshOrders): Promise<MeshReport> {
  const size = Object.values(orders.axes).reduce((all, length) => all * length, 1);
  const reports = (await runPooled(size, new URL("./rank.ts", import.meta.url), orders)).filter(isReport);
  const [first, ...others] = reports;
  if (first === undefined || reports.length < size) throw new Error("a rank reported nothing");
  if (others.some((one) => JSON.stringify(one) !== JSON.stringify(first))) {
    throw new Error("ranks report other numbers");
  }
  return first;
}

function distanceOf(found: MeshReport, expected: MeshReport): number {
  const off = (key: "losses" | "norms"): readonly number[] =>
    found[key].map((value, i) => Math.abs(value / (expected[key][i] ?? NaN) - 1));
  return Math.max(...off("losses"), ...off("norms"));
}

/** Trains on each mesh, goes on from its checkpoint on each, and calls `tell` with each pair. */
export async function meshPairs(
  config: FamilyOrders["config"],
  meshes: ReadonlyMap<string, Mesh>,
  tell: (item: MeshItem) => void,
): Promise<void> {
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-mesh-`);
  try {
    for (const [place, [from, mesh]] of [...meshes].entries()) {
      const directory = `${folder}/${place}`;
      const saved = await train({ config, ...mesh, to: directory });
      for (const [to, other] of meshes) {
        try {
          const loaded = await train({ config, ...other, from: directory });
          const bits = loaded.weights === saved.weights && loaded.states === saved.states;
          const distance = distanceOf(loaded, saved);
          const reasons = [
            ...bits ? [] : ["what is loaded has other bits than what was saved"],
            ...distance <= (from === to ? 0 : MOST) ? [] : [`losses and norms go on otherwise, by ${distance}`],
          ];
          const reason = reasons.length === 0 ? {} : { reason: reasons.join("; ") };
          tell({ from, to, status: reasons.length === 0 ? "pass" : "fail", bits, distance, ...reason });
        } catch (error) {
          tell({
            from,
            to,
            status: "fail",
            bits: false,
            reason: error instanceof Error ? error.message : String(error),
          });
        }
      }
    }
  } finally {
    rmSync(folder, { recursive: true });
  }
}
