/** The ranks' code of `range_reads_test.ts`. @module */
import { loadCheckpoint, saveCheckpoint } from "../../doors/checkpoint.ts";
import { initializeParameters, Linear } from "../../doors/nn.ts";
import { AdamW, fullyShard } from "../../mod.ts";
import { plainDirectoryTensors } from "../../src/checkpoint/state_dict/state_dict.ts";
import type { CheckpointModel } from "../../src/checkpoint/state_dict/state_dict.ts";
import { float32 } from "../../src/dtype.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** One layer of 6 MiB. */
class Wide extends Linear implements CheckpointModel {
  readonly hfConfig: CheckpointModel["hfConfig"] = {};
  readonly tiedNames: CheckpointModel["tiedNames"] = new Map();

  directoryTensors(): ReturnType<CheckpointModel["directoryTensors"]> {
    return plainDirectoryTensors(this);
  }
}

/** The bytes that a rank read. */
export interface Reads {
  /** Bytes of what it holds of weights and states. */
  readonly held: number;
  readonly bytesRead: number;
  readonly fileBytesRead: number;
  readonly tensors: number;
}

function open({ device, group }: WorldRank) {
  const model = new Wide(device, 1536, 1024, { bias: false });
  fullyShard(model, { mesh: group });
  initializeParameters(model, 1);
  return { model, optimizer: new AdamW(model.parameters()), group };
}

/** Saves. */
export async function save(rank: WorldRank, directory: string): Promise<string> {
  return (await saveCheckpoint({ ...open(rank), directory, step: 1, state: {} })).path;
}

/** Loads, and tells what was read. */
export async function load(rank: WorldRank, directory: string): Promise<Reads> {
  const { model, optimizer, group } = open(rank);
  const loaded = await loadCheckpoint({ model, optimizer, group, directory });
  if (loaded === undefined) throw new Error("there is no checkpoint");
  const { bytesRead, fileBytesRead } = loaded;
  return { held: 3 * model.weight.storage.shard.numel * float32.byteLength, bytesRead, fileBytesRead, tensors: 3 };
}

rankFunctions(import.meta.url, { save, load });
