/**
 * Checkpoints: Hugging Face folders in and out, and sharded ones that resume on any number of ranks.
 *
 * @module
 */

export { type HfLoadReport, type LoadHfOptions, loadHfWeights } from "../src/checkpoint/load_hf.ts";
export { loadCheckpoint, type LoadCheckpointOptions, type LoadedCheckpoint } from "../src/checkpoint/load.ts";
export { AsyncSave, asyncSave, type AsyncSaveOptions } from "../src/checkpoint/async_save.ts";
export { CheckpointStager } from "../src/checkpoint/stager.ts";
export { saveCheckpoint } from "../src/checkpoint/save.ts";
export type { SaveCheckpointOptions, SavedCheckpoint } from "../src/checkpoint/save_plan.ts";
export { saveHfDirectory, type SaveHfOptions } from "../src/checkpoint/save_hf.ts";
export { loadModule, saveModule, type SaveModuleOptions } from "../src/checkpoint/module_files.ts";
export { getModelStateDict, type ModelStateDict, setModelStateDict } from "../src/checkpoint/model_state.ts";
export {
  getOptimizerStateDict,
  type OptimizerLoadReport,
  type OptimizerStateDict,
  type ParameterState,
  setOptimizerStateDict,
} from "../src/checkpoint/optimizer_state.ts";
export type { StateDictOptions, StateTensor } from "../src/checkpoint/state_tensor.ts";
export { readHfConfig } from "../src/train/open_model.ts";

// What the types above are made of.
export type {
  CheckpointModel,
  DirectoryTensor,
  LoadReport,
  NamedParts,
  OtherFiles,
  SavableModel,
} from "../src/checkpoint/state_dict.ts";
export type { Companions } from "../src/checkpoint/companions.ts";
export type { Ranks } from "../src/checkpoint/ranks.ts";
export type { SavedGroup } from "../src/checkpoint/group_settings.ts";
export type { Box } from "../src/tensor/shard_layout.ts";
export type { JsonObject } from "../src/checkpoint/json.ts";
