/**
 * Checkpoints: Hugging Face folders in and out, and sharded ones that resume on any number of ranks.
 *
 * @module
 */

export { type HfLoadReport, type LoadHfOptions, loadHfWeights } from "../src/checkpoint/hugging_face/load.ts";
export { loadCheckpoint, type LoadCheckpointOptions, type LoadedCheckpoint } from "../src/checkpoint/sharded/load.ts";
export { AsyncSave, asyncSave, type AsyncSaveOptions } from "../src/checkpoint/sharded/async_save.ts";
export { CheckpointStager } from "../src/checkpoint/sharded/stager.ts";
export { saveCheckpoint } from "../src/checkpoint/sharded/save.ts";
export type { SaveCheckpointOptions, SavedCheckpoint } from "../src/checkpoint/sharded/save_plan.ts";
export { saveHfDirectory, type SaveHfOptions } from "../src/checkpoint/hugging_face/save.ts";
export { loadModule, saveModule, type SaveModuleOptions } from "../src/checkpoint/module_files.ts";
export { getModelStateDict, type ModelStateDict, setModelStateDict } from "../src/checkpoint/state_dict/model_state.ts";
export {
  getOptimizerStateDict,
  type OptimizerLoadReport,
  type OptimizerStateDict,
  type ParameterState,
  setOptimizerStateDict,
} from "../src/checkpoint/state_dict/optimizer_state.ts";
export type { StateDictOptions, StateTensor } from "../src/checkpoint/state_dict/state_tensor.ts";
export { readHfConfig } from "../src/train/open_model.ts";

// Types that the types above refer to.
export type {
  CheckpointModel,
  DirectoryTensor,
  LoadReport,
  NamedParts,
  OtherFiles,
  SavableModel,
} from "../src/checkpoint/state_dict/state_dict.ts";
export type { Companions } from "../src/checkpoint/format/companions.ts";
export type { Ranks } from "../src/checkpoint/format/ranks.ts";
export type { SavedGroup } from "../src/checkpoint/state_dict/group_settings.ts";
export type { Box } from "../src/tensor/shard_layout.ts";
export type { JsonObject } from "../src/json.ts";
