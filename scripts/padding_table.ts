/**
 * Prints what padding costs a unit of known models, by number of ranks: in float32, and where 2-byte dtypes are gathered.
 *
 * @module
 */
import process from "node:process";
import { planSegment } from "../src/fsdp/layout.ts";

/** Elements of the parameters of one block: attention, feed-forward, norms. */
interface BlockSizes {
  readonly hidden: number;
  readonly intermediate: number;
  readonly kv: number;
  readonly query?: number;
  readonly hasBias?: boolean;
  readonly norms?: number;
}

function block(
  { hidden, intermediate, kv, query = hidden, hasBias = false, norms = 2 }: BlockSizes,
): readonly number[] {
  const attention = [hidden * query, hidden * kv, hidden * kv, query * hidden, ...hasBias ? [query, kv, kv] : []];
  return [...attention, ...Array<number>(3).fill(hidden * intermediate), ...Array<number>(norms).fill(hidden)];
}

const units: Readonly<Record<string, readonly number[]>> = {
  "our block (256)": block({ hidden: 256, intermediate: 688, kv: 128 }),
  "Llama-3-8B block": block({ hidden: 4096, intermediate: 14336, kv: 1024 }),
  "Qwen2.5-0.5B block": block({ hidden: 896, intermediate: 4864, kv: 128, hasBias: true }),
  "GLM4-9B block": block({ hidden: 4096, intermediate: 13696, kv: 256, hasBias: true, norms: 4 }),
  "257 × 257": [257 * 257],
};
const worlds = Array.from({ length: 13 }, (_, power) => 2 ** power);

for (const [bytes, what] of [[4, "float32: A = 64"], [2, "2-byte dtypes: A = 128"]] as const) {
  process.stdout.write(`\n${what}\n${["ranks", ...Object.keys(units)].join(" | ")}\n`);
  for (const world of worlds) {
    const cells = Object.entries(units).map(([name, sizes]) => {
      const { padding } = planSegment(sizes, world, bytes);
      const bound = (256 / bytes) * (sizes.length + world);
      if (padding >= bound) throw new Error(`${name} on ${world} ranks: ${padding} elements, not below ${bound}`);
      const share = 100 * padding / sizes.reduce((sum, size) => sum + size, 0);
      return `${padding} (${share.toFixed(4)} %)`;
    });
    process.stdout.write(`${[world, ...cells].join(" | ")}\n`);
  }
}
