/**
 * A rank that reads batches: `dataloader.ts <folder,…> <batch>x<sequence>…` packs the files of the folders, as bytes, into a token
 * file, and prints the microseconds that the best of many batches of each case took, and SHA-256 of the tokens.
 *
 * @module
 */
import { createHash } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import process from "node:process";
import { BYTE_TOKENIZER, DataLoader, openText, type TokenCache, tokenCache } from "fullyshard/data";

/** Bytes behind the tokens of a file; see Note [Token file] in src/data/token_stream.ts. */
const TRAILER = 32;

const [folders = "", ...cases] = process.argv.slice(2);
const directory = mkdtempSync(`${tmpdir()}/fullyshard-bench-`);
try {
  const cache = tokenCache(openText(folders.split(",")), BYTE_TOKENIZER, directory);
  await cache.build();
  const digest = createHash("sha256").update(readFileSync(cache.path).subarray(0, -TRAILER)).digest("hex");
  process.stdout.write(`tokens ${digest}\n`);
  for (const name of cases) process.stdout.write(`${name} ${(await timeBatches(cache, name)).toFixed(2)}\n`);
} finally {
  rmSync(directory, { recursive: true });
}

/** Throws if a batch is not what it should be: as many tokens, each labeled with the next. */
async function requireSamples(loader: DataLoader, numel: number): Promise<void> {
  const { microBatches: [first] } = await loader.next();
  const { inputIds, labels, seq = NaN } = first ?? {};
  const isWhole = inputIds?.length === numel && labels?.length === numel;
  if (!isWhole || inputIds.some((id, i) => i % seq > 0 && id !== labels[i - 1])) {
    throw new Error("a batch has other tokens than those that were packed");
  }
}

/** Microseconds of the best of the batches that fit into half a second. */
async function timeBatches(cache: TokenCache, name: string): Promise<number> {
  const [globalBatch = NaN, sequenceLength = NaN] = name.split("x").map(Number);
  const tokens = cache.open();
  const split = { globalBatch, sequenceLength, rank: 0, worldSize: 1, microBatches: 1 };
  const loader = new DataLoader({ tokens, seed: 0, ...split });
  try {
    await requireSamples(loader, globalBatch * sequenceLength);
    let best = Infinity;
    const until = performance.now() + 500;
    while (performance.now() < until) {
      const started = performance.now();
      await loader.next();
      best = Math.min(best, performance.now() - started);
    }
    return best * 1000;
  } finally {
    tokens.close();
  }
}
