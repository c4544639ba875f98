/** Models of the tests of axes, and how they are laid over ranks. @module */
import type { DeviceMesh, MeshShape } from "../../doors/comm.ts";
import { deviceMesh } from "../../doors/comm.ts";
import { initializeParameters, Linear, Module, RMSNorm } from "../../doors/nn.ts";
import { fullyShard, parallelizeModule, type ParallelizePlan, replicate, type Tensor } from "../../mod.ts";
import type { Device } from "../../doors/device.ts";
import { GatedFeedForward } from "../../src/nn/feed_forward.ts";
import type { WorldRank } from "../support/world.ts";

/** Width of what blocks are given and give. */
export const WIDTH = 48;
/** Width of what they predict. */
const OUT = 24;

/** The model, and its layout over ranks. */
export interface Layout {
  readonly shard: number;
  readonly tensor: number;
  readonly replicate?: number;
  /** Width inside the blocks. @default 96 */
  readonly inner?: number;
  /** True if gate and up are one weight. @default false */
  readonly fused?: boolean;
  /** The layout of weights. @default `outIn` */
  readonly weights?: "outIn" | "inOut";
  /** True if layers have biases. @default false */
  readonly bias?: boolean;
  /** The parallelism that shards or replicates. @default fsdp */
  readonly mode?: "fsdp" | "ddp";
  /** The dim that parameters are sharded along. @default flat */
  readonly dim?: number;
}

/**
 * A norm, a gated feed-forward and the mean of a wide layer, which no axis cuts and which the boundary of two shards lies in, added to
 * what was given.
 */
class Block extends Module<[x: Tensor], Tensor> {
  readonly norm: RMSNorm;
  readonly wide: Linear;
  readonly mlp: GatedFeedForward;

  constructor(device: Device, { inner = 96, fused = false, weights: layout = "outIn", bias = false }: Layout) {
    super();
    this.norm = new RMSNorm(device, WIDTH, 1e-6);
    this.wide = new Linear(device, WIDTH, 160, { bias: false });
    this.mlp = new GatedFeedForward(device, {
      hiddenSize: WIDTH,
      intermediateSize: inner,
      activation: "silu",
      init: { kind: "normal", mean: 0, std: 0.2 },
      ...{ fused, layout, bias },
    });
  }

  forward(x: Tensor): Tensor {
    const normed = this.norm.call(x);
    return x.add(this.mlp.call(normed)).add(this.wide.call(normed).mean([1], true));
  }
}

/** Blocks and a head. */
export class Net extends Module<[x: Tensor], Tensor> {
  readonly blocks: readonly Block[];
  readonly head: Linear;

  constructor(device: Device, layout: Layout) {
    super();
    this.blocks = [0, 1].map(() => new Block(device, layout));
    this.head = new Linear(device, WIDTH, OUT);
  }

  forward(x: Tensor): Tensor {
    return this.head.call(this.blocks.reduce((hidden, block) => block.call(hidden), x));
  }
}

const PLAN: ParallelizePlan = { "blocks.*.mlp.up_proj": "colwise", "blocks.*.mlp.gate_proj": "colwise" };
const FUSED: ParallelizePlan = { "blocks.*.mlp.gate_up_proj": "colwise" };

/** The mesh of a layout. */
export function meshOf({ group }: Pick<WorldRank, "group">, { replicate = 1, shard, tensor }: Layout): DeviceMesh {
  const shape: MeshShape = { replicate, shard, tensor };
  return deviceMesh(group, shape);
}

/** The model of a layout, without values. */
export function layOut(rank: WorldRank, layout: Layout): { readonly model: Net; readonly mesh: DeviceMesh } {
  const model = new Net(rank.device, layout);
  model.nameTree();
  const mesh = meshOf(rank, layout);
  const columns = layout.fused === true ? FUSED : PLAN;
  parallelizeModule(model, mesh.get("tensor"), { ...columns, "blocks.*.mlp.down_proj": "rowwise" });
  const { mode = "fsdp", dim } = layout;
  const over = layout.replicate === undefined ? mesh.get("shard") : mesh.slice(["replicate", "shard"]);
  if (mode === "ddp") replicate(model, { mesh: over });
  else {
    const options = { mesh: over, ...dim === undefined ? {} : { shardPlacement: () => dim } };
    for (const block of model.blocks) fullyShard(block, options);
    fullyShard(model, options);
  }
  return { model, mesh };
}

/** The model of a layout, with first values. */
export function initialized(rank: WorldRank, layout: Layout): ReturnType<typeof layOut> {
  const laid = layOut(rank, layout);
  initializeParameters(laid.model, 7);
  return laid;
}
