/** Ranks of `wait_board_test.ts`. @module */
import { deviceMesh } from "../../src/comm/mesh.ts";
import type { ProcessGroup } from "../../src/comm/process_group.ts";
import { sleep } from "../conformance/values.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** What rank 3 of a mesh of 2 × 2 does otherwise than the others. */
export type Divergence = "another group" | "no message" | "groups in another order";

/** The groups of the two axes of a mesh of 2 × 2. */
function axesOf(group: ProcessGroup): { readonly shard: ProcessGroup; readonly tensor: ProcessGroup } {
  const mesh = deviceMesh(group, { shard: 2, tensor: 2 });
  return { shard: mesh.axis("shard"), tensor: mesh.axis("tensor") };
}

/** Makes calls of several groups, of which rank 3 leaves out or exchanges one, and so does rank 0 in the last case. */
export function diverge({ group, rank, device }: WorldRank, what: Divergence): string {
  const { shard, tensor } = axesOf(group);
  if (what === "groups in another order") {
    const first = rank === 0 || rank === 3 ? shard : tensor;
    const names = new Map([[shard, "shards"], [tensor, "parts"]]);
    for (const one of [first, first === shard ? tensor : shard]) one.sum([rank], names.get(one) ?? "");
    return "well";
  }
  if (what === "another group") {
    if (rank === 3) group.barrier("a call of my own");
    tensor.sum([rank], "parts");
    shard.sum([rank], "shards");
    return "well";
  }
  const ptr = device.allocator.allocate(4096, "test");
  if (rank === 3) tensor.barrier("a call of my own");
  if (rank === 2) tensor.receive(ptr, 4096, 1, "activations").wait();
  group.barrier("end");
  return "well";
}

/** Sends a message of the same length as the other rank receives. */
export function sendOther({ group, rank, device }: WorldRank, tags: readonly (string | undefined)[]): string {
  const [ptr, tag] = [device.allocator.allocate(4096, "test"), tags[rank]];
  const kind = rank === 0 ? "send" : "receive";
  const message = { kind, ptr, byteLength: 4096, peer: 1 - rank, ...tag === undefined ? {} : { tag } } as const;
  group.transfer([message], "messages").wait();
  return "well";
}

/** Sums over both axes, where rank 1 comes so late that others have looked for each other many times. */
export function reduceLate({ group, rank }: WorldRank): number {
  const { shard, tensor } = axesOf(group);
  if (rank === 1) sleep(1200);
  const [sum = NaN] = tensor.sum([rank + 1], "parts");
  const [all = NaN] = shard.sum([sum], "shards");
  return all;
}

rankFunctions(import.meta.url, { diverge, sendOther, reduceLate });
