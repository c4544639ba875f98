/**
 * The memory that a tensor keeps alive: its own, and the memory of the graph that computed it.
 *
 * @module
 */
import { blockBytes } from "../device/allocator.ts";
import type { Tensor } from "./tensor.ts";

/**
 * Bytes of activations that live as long as a tensor.
 *
 * @param seen buffers and nodes counted before, which are skipped; those counted now are added
 */
export function heldBytes(tensor: Tensor, seen: Set<object>): number {
  let bytes = 0;
  const count = ({ buffer }: Tensor): void => {
    if (!seen.has(buffer) && buffer.kind === "activations" && buffer.hasMemory) bytes += blockBytes(buffer.byteLength);
    seen.add(buffer);
  };
  count(tensor);
  const edges = [tensor.edge];
  // A list instead of recursion: a graph may be as deep as the computation is long.
  while (edges.length > 0) {
    const node = edges.pop()?.node;
    if (node === undefined || seen.has(node)) continue;
    seen.add(node);
    for (const held of node.held) count(held);
    edges.push(...node.edges);
  }
  return bytes;
}
