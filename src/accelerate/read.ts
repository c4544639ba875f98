/**
 * Reads the configuration of Accelerate, or Transformers' `fsdp` and `fsdp_config`, as the trainer's own keys, each with the place
 * where it was said. FSDP1's names are reported with FSDP2's; unknown and unsupported keys are refused by name.
 *
 * @module
 */
import { type ConfigFile, readConfigText } from "../config/file.ts";
import { didYouMean } from "../config/nearest.ts";
import { camelCase, type JsonSchema } from "../config/schema.ts";
import { FileError } from "../errors.ts";
import { readText } from "../runtime/files.ts";
import { CLUSTER_KEYS, PARALLELISM_KEYS } from "./cluster_keys.ts";
import { checkExperts, DISTRIBUTED_KEYS } from "./distributed_keys.ts";
import { FSDP_KEYS, setStrategy, STRATEGIES } from "./fsdp_keys.ts";
import { type ForeignKey, KeyTranslation, type LaunchedRanks } from "./key.ts";

/** A file, or what it would hold. */
export type ForeignSource = string | Readonly<Record<string, unknown>>;

/** A configuration in the trainer's words. */
export interface ForeignConfig extends ConfigFile {
  /** Remarks for the user. */
  readonly notices: readonly string[];
  /** The start of ranks. */
  readonly ranks: Readonly<LaunchedRanks>;
}

/** Keys by the name that {@link readConfigText} gives them. */
type KeyTable = ReadonlyMap<string, ForeignKey>;

/** Every key under its own name, and under that with the prefix that files write before it. */
function tableOf(keys: readonly ForeignKey[], prefix: string): KeyTable {
  return new Map(keys.flatMap((key) => [key.name, prefix + key.name].map((name) => [camelCase(name), key] as const)));
}

const anything = (table: KeyTable): JsonSchema => ({
  properties: Object.fromEntries([...table.keys()].map((name) => [name, {}])),
});

/** Name of a key as files spell it. */
function snakeCase(name: string): string {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

/**
 * Reads Transformers' `fsdp_config`.
 *
 * @param fsdp Transformers' `fsdp`: whether to shard, or options as in `full_shard auto_wrap offload`, which `source` wins over
 * @returns the trainer's keys, with what was wrong among `problems`
 * @example
 * ```ts
 * import { readFsdpConfig } from "fullyshard/config";
 * const { values } = await readFsdpConfig({ auto_wrap_policy: "NO_WRAP" }, "full_shard auto_wrap");
 * if (values["fsdpPlan"] !== "none") throw new Error("the config wins over the options");
 * ```
 */
export async function readFsdpConfig(source: ForeignSource, fsdp: boolean | string = true): Promise<ForeignConfig> {
  const to = new KeyTranslation();
  if (typeof fsdp === "string") takeOptions(fsdp, to);
  else to.set("strategy", fsdp ? "fsdp" : "ddp");
  const table = tableOf(FSDP_KEYS, "fsdp_");
  const file = await readSource(source, "fsdp_config", anything(table));
  takeAll(file.values, table, "", file, to);
  return finish(file, to);
}

/**
 * Reads Accelerate's file, or what it would hold.
 *
 * @returns the trainer's keys, with what was wrong among `problems`
 * @example
 * ```ts
 * import { readAccelerateConfig } from "fullyshard/config";
 * const { values, notices } = await readAccelerateConfig({ fsdp_config: { fsdp_sharding_strategy: "SHARD_GRAD_OP" } });
 * if (values["reshardAfterForward"] !== false) throw new Error("read otherwise");
 * if (notices.length !== 1) throw new Error("FSDP1's name is reported");
 * ```
 */
export async function readAccelerateConfig(source: ForeignSource): Promise<ForeignConfig> {
  const to = new KeyTranslation();
  const tables = {
    fsdpConfig: tableOf(FSDP_KEYS, "fsdp_"),
    parallelismConfig: tableOf(PARALLELISM_KEYS, "parallelism_config_"),
  };
  const cluster = tableOf(CLUSTER_KEYS, "");
  const nested = Object.fromEntries(Object.entries(tables).map(([name, table]) => [name, anything(table)]));
  const file = await readSource(source, "accelerate", { properties: { ...anything(cluster).properties, ...nested } });
  takeAll(file.values, cluster, "", file, to);
  for (const [name, table] of Object.entries(tables)) {
    const values = file.values[name];
    if (typeof values === "object" && values !== null) takeAll({ ...values }, table, `${name}.`, file, to);
  }
  return finish(file, to);
}

/**
 * Reads transformers' `DistributedConfig`, or a file of it.
 *
 * @returns the trainer's keys, with what was wrong among `problems`
 * @example
 * ```ts
 * import { readDistributedConfig } from "fullyshard/config";
 * const { values, problems } = await readDistributedConfig({ tp_size: 2, fsdp_size: 4, tp_plan: "auto" });
 * if (values["tpSize"] !== 2 || values["fsdpSize"] !== 4 || problems.length > 0) throw new Error("read otherwise");
 * ```
 */
export async function readDistributedConfig(source: ForeignSource): Promise<ForeignConfig> {
  const to = new KeyTranslation();
  const table = tableOf(DISTRIBUTED_KEYS, "");
  const file = await readSource(source, "distributed_config", anything(table));
  takeAll(file.values, table, "", file, to);
  checkExperts(to);
  to.key = { typed: "distributed_config", where: undefined };
  to.set("strategy", "fsdp");
  to.set("fsdpPlan", "auto");
  // As there, where the other sizes are not given the ranks left are the tensor axis's.
  if (!to.said.has("fsdp_size")) to.set("fsdpSize", 1);
  const { values, places, notices, ranks } = to;
  return { values, places, notices, ranks, problems: [...file.problems, ...to.problems] };
}

async function readSource(source: ForeignSource, what: string, schema: JsonSchema): Promise<ConfigFile> {
  if (typeof source !== "string") {
    const file = await readConfigText(what, JSON.stringify(source), schema, snakeCase);
    // Keys that a program passes lie in no file, so they have no places.
    return { ...file, places: new Map(), problems: file.problems.map(({ where: _, ...problem }) => problem) };
  }
  try {
    return await readConfigText(source, await readText(source), schema, snakeCase);
  } catch (error) {
    if (!(error instanceof FileError)) throw error;
    return {
      values: {},
      places: new Map(),
      problems: [{ path: what, expected: "a readable file", got: error.message }],
    };
  }
}

/** Takes each value by its key. Accelerate writes null for what was not answered, so null says nothing, whatever the key. */
function takeAll(
  values: Readonly<Record<string, unknown>>,
  table: KeyTable,
  prefix: string,
  file: ConfigFile,
  to: KeyTranslation,
): void {
  for (const [name, value] of Object.entries(values)) {
    if (value === null) continue;
    const key = table.get(name);
    to.key = { typed: snakeCase(name), where: file.places.get(prefix + name) };
    if (key !== undefined) to.said.set(key.name, to.key);
    key?.read(value, to);
  }
}

/** Takes the words of `fsdp`. Wrapping is how it always is, so `auto_wrap` asks for nothing. */
function takeOptions(options: string, to: KeyTranslation): void {
  to.key = { typed: "fsdp", where: undefined };
  to.set("strategy", "fsdp");
  for (const word of options.split(/[\s,]+/).filter((word) => word !== "")) {
    const strategy = STRATEGIES.find((name) => name.toLowerCase() === word.toLowerCase());
    if (strategy !== undefined) setStrategy(strategy, to);
    else if (word === "offload") to.set("cpuOffload", true);
    else if (word !== "auto_wrap") {
      const known = [...STRATEGIES.map((name) => name.toLowerCase()), "auto_wrap", "offload"];
      to.refuse(`true, false or some of ${known.join(" ")}`, `'${word}'${didYouMean(word, known)}`);
    }
  }
}

/** Makes one plan, and one mesh, of the keys that say parts of them. */
function finish(file: ConfigFile, to: KeyTranslation): ForeignConfig {
  const { policy = "TRANSFORMER_BASED_WRAP", classes = [], minNumParams = 0 } = to.wrapping;
  const { replicate = 1, shard = 1, sequence = 1, context: cp = 1, tensor = 1, commStrategy = "allgather" } = to.axes;
  const context = Math.max(cp, sequence);
  const begin = (name: string): void => {
    to.key = to.said.get(name) ?? to.said.get("auto_wrap_policy") ?? { typed: name, where: undefined };
  };
  begin("min_num_params");
  if (policy !== "SIZE_BASED_WRAP") { if (minNumParams > 0) to.notice("counts with SIZE_BASED_WRAP only"); }
  else if (minNumParams > 0) to.set("fsdpPlan", { mode: "size", minNumParams });
  else to.refuse("min_num_params from 1 with SIZE_BASED_WRAP", to.said.has("min_num_params") ? "0" : "nothing");
  begin("transformer_layer_cls_to_wrap");
  if (policy === "NO_WRAP") to.set("fsdpPlan", "none");
  if (policy !== "TRANSFORMER_BASED_WRAP") {
    if (classes.length > 0) to.notice("counts with TRANSFORMER_BASED_WRAP only");
  } else if (classes.length > 0) to.set("fsdpPlan", { mode: "transformer", classes: [...classes] });
  else if (to.said.has("auto_wrap_policy")) to.set("fsdpPlan", "transformer");
  begin("sp_size");
  if (sequence > 1 && cp > 1) to.refuse("1 with cp_size above 1", String(sequence));
  else if (sequence > 1) to.set("cpCommStrategy", "ulysses");
  begin("cp_comm_strategy");
  if (context > sequence) to.set("cpCommStrategy", commStrategy);
  else if (to.said.has("cp_comm_strategy")) to.notice("counts with cp_size above 1 only");
  begin("dp_shard_size");
  if (tensor > 1 || context > 1) {
    if (tensor > 1) to.set("tpSize", tensor);
    if (context > 1) to.set("cpSize", context);
    to.set("dpReplicateSize", replicate);
    to.set("fsdpSize", shard);
  } else if (shard > 1) to.set("mesh", `${replicate}x${shard}`);
  else if (replicate > 1) to.set("strategy", "ddp");
  const { values, places, notices, ranks } = to;
  return { values, places, notices, ranks, problems: [...file.problems, ...to.problems] };
}
