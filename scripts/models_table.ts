/**
 * The table of `docs/models.md`, from the families themselves: what each is called, what its blocks are made of, which options of
 * its `config.json` it reads, and which of these it refuses.
 *
 * Usage: node scripts/runtime.mjs bun scripts/models_table.ts   (writes it into the page)
 *
 * @module
 */
import { readFileSync, writeFileSync } from "node:fs";
import { type Device, openDevice } from "../doors/device.ts";
import { ConfigError, UnsupportedError } from "../doors/errors.ts";
import { buildModel } from "../doors/nn.ts";
import { DECODER_KEYS, REFUSED_KEYS } from "../src/models/decoder_config.ts";
import { ROPE_KEYS } from "../src/models/rope_config.ts";
import type { CausalLm } from "../mod.ts";
import { ZOO, type ZooModel, zooModels } from "./zoo/families.ts";

const PAGE = new URL("../docs/models.md", import.meta.url);

/** Values that a switch or a rate may have instead of its default. */
const OTHERS: ReadonlyMap<unknown, unknown> = new Map<unknown, unknown>([[false, true], [true, false], [0, 0.1]]);

/** Keys that are read of a configuration when its model is built. */
function keysOf(device: Device, { hfConfig }: ZooModel): readonly string[] {
  const keys = new Set<string>();
  const watched = new Proxy({ ...hfConfig }, {
    // No key is listed: a copy of the configuration would count as a read of every key.
    ownKeys: () => [],
    get: (config, key) => {
      if (typeof key === "string") keys.add(key);
      return Reflect.get(config, key);
    },
  });
  buildModel(device, watched);
  return [...keys];
}

function isRefused(device: Device, { hfConfig }: ZooModel, key: string): boolean {
  const other = OTHERS.get(hfConfig[key]);
  if (other === undefined) return false;
  try {
    buildModel(device, { ...hfConfig, [key]: other });
    return false;
  } catch (error) {
    if (error instanceof UnsupportedError) return true;
    if (error instanceof ConfigError) return false;
    throw error;
  }
}

/** Classes of the modules that blocks hold, but for norms. */
function partsOf({ layers }: CausalLm): readonly string[] {
  const parts = layers.flatMap((layer) => [...layer.namedModules()].slice(1))
    .filter(([name]) => !name.includes(".")).map(([, module]) => module.constructor.name);
  return [...new Set(parts)].filter((name) => !name.includes("Norm"));
}

function rowOf(device: Device, family: string): string {
  const [zoo] = zooModels(family);
  if (zoo === undefined) throw new Error(`no configuration of ${family}`);
  const model = buildModel(device, zoo.hfConfig);
  const common = new Set([...Object.keys(DECODER_KEYS), ...Object.keys(ROPE_KEYS), ...Object.keys(REFUSED_KEYS)]);
  const keys = keysOf(device, zoo);
  const code = (names: readonly string[]): string => names.map((name) => `\`${name}\``).join(", ");
  const refused = keys.filter((key) => isRefused(device, zoo, key));
  const own = keys.filter((key) => key !== "model_type" && !common.has(key) && !refused.includes(key));
  const cells = [
    `\`${zoo.hfConfig["model_type"]}\``,
    model.classNames.get(model.constructor),
    partsOf(model).join(", "),
    code(own),
    code(refused),
  ];
  return `| ${cells.join(" | ")} |`;
}

/** The table as Markdown, not aligned. */
export async function table(): Promise<string> {
  const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 24 });
  const rows = ZOO.map((family) => rowOf(device, family));
  device.dispose();
  const head = "| `model_type` | in `transformers` | blocks are made of | options beside the common ones | refused |";
  return [head, "| --- | --- | --- | --- | --- |", ...rows].join("\n");
}

/** The part of the page that is generated. */
export function written(): string {
  return /<!-- families -->\n([^]*)<!-- end of families -->/.exec(readFileSync(PAGE, "utf8"))?.[1] ?? "";
}

if (import.meta.main) {
  const page = readFileSync(PAGE, "utf8");
  const text = await table();
  writeFileSync(
    PAGE,
    page.replace(
      /(<!-- families -->\n)[^]*(<!-- end of families -->)/,
      (_, begin, end) => `${begin}\n${text}\n\n${end}`,
    ),
  );
}
