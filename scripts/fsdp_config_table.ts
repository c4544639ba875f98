/**
 * The tables of `docs/fsdp_config.md`, from the tables of keys that files are read by.
 *
 * Usage: node scripts/runtime.mjs bun scripts/fsdp_config_table.ts   (writes them into the page)
 *
 * @module
 */
import { readFileSync, writeFileSync } from "node:fs";
import { CLUSTER_KEYS, PARALLELISM_KEYS } from "../src/accelerate/cluster_keys.ts";
import { DISTRIBUTED_KEYS } from "../src/accelerate/distributed_keys.ts";
import { FSDP_KEYS } from "../src/accelerate/fsdp_keys.ts";
import type { ForeignKey } from "../src/accelerate/key.ts";

const PAGE = new URL("../docs/fsdp_config.md", import.meta.url);

function table(title: string, keys: readonly ForeignKey[]): string {
  const rows = keys.map(({ name, shown, here, isFsdp1 = false }) =>
    `| \`${name}\`${isFsdp1 ? " (FSDP1)" : ""} | ${shown} | ${here} |`
  );
  return [`### ${title}`, "", "| key | values | here |", "| --- | --- | --- |", ...rows].join("\n");
}

/** The tables as Markdown, not aligned. */
export function tables(): string {
  return [
    table("Keys of `fsdp_config`", FSDP_KEYS),
    table("Keys beside it, in Accelerate's file", CLUSTER_KEYS),
    table("Keys of `parallelism_config`", PARALLELISM_KEYS),
    table("Keys of transformers' `DistributedConfig`", DISTRIBUTED_KEYS),
  ].join("\n\n");
}

/** The part of the page that is generated. */
export function written(): string {
  return /<!-- keys -->\n([^]*)<!-- end of keys -->/.exec(readFileSync(PAGE, "utf8"))?.[1] ?? "";
}

if (import.meta.main) {
  const page = readFileSync(PAGE, "utf8");
  writeFileSync(
    PAGE,
    page.replace(/(<!-- keys -->\n)[^]*(<!-- end of keys -->)/, (_, begin, end) => `${begin}\n${tables()}\n\n${end}`),
  );
}
