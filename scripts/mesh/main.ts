/**
 * `npm run mesh -- [--json] [--family name]`: checkpoints from mesh to mesh, see `pairs.ts`. The last line with `--json` is one object:
 * `passed`, `failed`, `items`.
 *
 * @module
 */
import process from "node:process";
import { describeFlags, type Flag, readFlags } from "../../src/config/flags.ts";
import { ZOO, zooModels } from "../zoo/families.ts";
import { meshesOf, type MeshItem, meshPairs } from "./pairs.ts";

const flags: readonly Flag[] = [
  { name: "json", takes: "switch", description: "Print nothing but one JSON object" },
  { name: "family", takes: "one", placeholder: "<name>", description: "The model's family (default: llama)" },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

function print(text: string): void {
  process.stdout.write(`${text}\n`);
}

async function main(argv: readonly string[]): Promise<number> {
  const { uses, problems } = readFlags(flags, argv);
  const family = uses.get("family")?.texts.at(-1) ?? "llama";
  const isKnown = ZOO.includes(family);
  if (problems.length > 0 || uses.has("help") || !isKnown) {
    for (const { path, expected, got } of problems) print(`${path}: expected ${expected}, got ${got}`);
    if (!isKnown) print(`--family: expected one of ${ZOO.join(", ")}, got '${family}'`);
    print(`Usage: npm run mesh -- [flags]\n\n${describeFlags(flags)}`);
    return uses.has("help") ? 0 : 2;
  }
  const isJson = uses.has("json");
  const items: MeshItem[] = [];
  const config = zooModels(family)[0]?.hfConfig ?? {};
  const meshes = meshesOf(family);
  if (!isJson) print(`${family}: ${meshes.size} meshes; a line for each pair`);
  await meshPairs(config, meshes, (item) => {
    items.push(item);
    if (isJson) return;
    const { from, to, status, bits, distance = NaN, reason } = item;
    print(
      `${status} ${from} → ${to}: ${bits ? "same bits" : "other bits"}, then within ${distance.toPrecision(2)}${
        reason === undefined ? "" : `: ${reason}`
      }`,
    );
  });
  const failed = items.filter(({ status }) => status === "fail").length;
  const passed = items.length - failed;
  print(isJson ? JSON.stringify({ passed, failed, items }) : `${passed} passed, ${failed} failed`);
  return failed === 0 ? 0 : 1;
}

process.exitCode = await main(process.argv.slice(2));
