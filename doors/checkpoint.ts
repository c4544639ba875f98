/**
 * Checkpoints: Hugging Face folders in and out, and sharded ones that resume on any number of ranks.
 *
 * @module
 */

export { type HfLoadReport, loadHfWeights } from "../src/checkpoint/load_hf.ts";
export { loadCheckpoint, type LoadCheckpointOptions, type LoadedCheckpoint } from "../src/checkpoint/load.ts";
export { saveCheckpoint, type SaveCheckpointOptions, type SavedCheckpoint } from "../src/checkpoint/save.ts";
export { saveHfDirectory, type SaveHfOptions } from "../src/checkpoint/save_hf.ts";
export { readHfConfig } from "../src/train/open_model.ts";
