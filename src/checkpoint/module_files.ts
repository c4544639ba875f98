/**
 * A module of one's own in files, and back: safetensors under the names of its tree, which PyTorch reads by
 * `safetensors.torch.load_file`.
 *
 * @module
 */
import { requireKnownKeys } from "../config/known_keys.ts";
import { type Module, requireModule } from "../nn/module.ts";
import { pathKind } from "../runtime/files.ts";
import { ALONE, type Ranks } from "./format/ranks.ts";
import { type LoadHfOptions, loadHfWeights } from "./hugging_face/load.ts";
import { saveHfDirectory, type SaveHfOptions } from "./hugging_face/save.ts";
import { loadCheckpoint } from "./sharded/load.ts";
import { MANIFEST_FILE } from "./sharded/manifest.ts";

/** Options of {@link saveModule}. */
export interface SaveModuleOptions extends Pick<SaveHfOptions, "dtype" | "maxShardBytes"> {
  /** Values that are written as `config.json`: sizes that the module is built from, for example. @default no such file */
  readonly config?: Readonly<Record<string, unknown>>;
}

/**
 * Writes the parameters and saved buffers of any module, sharded, replicated or neither, as `model.safetensors`, or as
 * shards with their index where they are large. Every rank must call it; each writes its own elements. A tied parameter
 * is stored once, a frozen one like any other.
 *
 * @param ranks the group of the ranks that hold the module, `run.group`; left out by a process on its own
 * @throws {ArgumentError} before anything is written: if the module has no parameters, two of one name or one without
 *   values, hides some in a Map or a Set, or is sharded and the group is not given
 * @throws {FileError} if a file cannot be written; the other ranks get a {@link CollectiveError}. What the directory held
 *   is then as it was
 * @example
 * ```ts
 * import { fullyShard, launch } from "fullyshard";
 * import { loadModule, saveModule } from "fullyshard/checkpoint";
 * import { initializeParameters, Linear } from "fullyshard/nn";
 * await using run = await launch();
 * const model = new Linear(run.device, 8, 4);
 * fullyShard(model, { mesh: run.mesh });
 * initializeParameters(model, 0);
 * const folder = `/tmp/fullyshard-${crypto.randomUUID()}`;
 * await saveModule(model, folder, run.group, { config: { inputs: 8, outputs: 4 } });
 * await loadModule(new Linear(run.device, 8, 4), folder, run.group); // sharded or not, on any number of ranks
 * ```
 */
export async function saveModule(
  module: Module,
  directory: string,
  ranks: Ranks = ALONE,
  options: SaveModuleOptions = {},
): Promise<void> {
  requireModule("save", module);
  requireKnownKeys("save a module", options, { config: true, dtype: true, maxShardBytes: true });
  const { config, ...how } = options;
  await saveHfDirectory(config === undefined ? module : withConfig(module, config), directory, ranks, how);
}

/**
 * Reads what {@link saveModule} wrote, or `saveCheckpoint`, into a module with the same names and shapes, on any number of
 * ranks. Every rank must call it; each reads its own elements. Memory is taken where the module has none yet.
 *
 * @param ranks the group of the ranks that hold the module, `run.group`; left out by a process on its own
 * @throws {CheckpointError} listing all names that are missing, unexpected, mis-shaped or of a wrong dtype, before anything
 *   is read; or if a file is damaged
 * @throws {FileError} if a file cannot be read; the other ranks get a {@link CollectiveError}
 */
export async function loadModule(
  module: Module,
  directory: string,
  ranks: Ranks = ALONE,
  options: LoadHfOptions = {},
): Promise<void> {
  requireModule("load", module);
  requireKnownKeys("load a module", options, { broadcastFromRank0: true });
  if (pathKind(`${directory}/${MANIFEST_FILE}`) === "none") await loadHfWeights(module, directory, ranks, options);
  else await loadCheckpoint({ directory, from: directory, model: module, group: ranks, ...options });
}

/** A module's tensors with a config beside them. */
function withConfig(
  module: Module,
  hfConfig: Readonly<Record<string, unknown>>,
): Parameters<typeof saveHfDirectory>[0] {
  return {
    namedParameters: () => module.namedParameters(),
    namedBuffers: () => module.namedBuffers(),
    hfConfig,
  };
}
