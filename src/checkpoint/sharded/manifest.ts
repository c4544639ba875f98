/**
 * The manifest of a sharded checkpoint: what it holds, where, and how long and with which checksums every file is. It is
 * written last, so a checkpoint without one was not finished. Reading one is left to `parse_manifest.ts`.
 *
 * @module
 */
import type { JsonObject } from "../../json.ts";
import { crc32, crc32Text } from "../../runtime/checksum.ts";
import type { Shape } from "../../shape.ts";
import type { Box } from "../../tensor/shard_layout.ts";
import type { WrittenFile } from "../format/pieces.ts";
import type { SavedGroup } from "../state_dict/group_settings.ts";

/** The manifest's name in a checkpoint. */
export const MANIFEST_FILE = "manifest.json";

/** The name of the model's configuration in a checkpoint. */
export const CONFIG_FILE = "config.json";

/** The value of a manifest's `format`. */
export const MANIFEST_FORMAT = "fullyshard-checkpoint";
/** The version of that format. */
export const MANIFEST_VERSION = 3;

/** Elements of a tensor in a file. */
export interface SavedShare {
  readonly file: string;
  readonly box: Box;
}

/** A tensor of a checkpoint. */
export interface SavedTensor {
  readonly shape: Shape;
  /** Together they are the full tensor. */
  readonly shares: readonly SavedShare[];
  /** Its name in the files. @default the name that it is listed under */
  readonly stored?: string;
}

/** An optimizer of a checkpoint. */
export interface SavedOptimizer {
  /** States, by `<FQN>.<state>`. */
  readonly tensors: ReadonlyMap<string, SavedTensor>;
  /** Calls of its `step()`. */
  readonly stepsTaken: number;
  /** Steps of each parameter, by FQN: one without a gradient is not stepped. */
  readonly steps: ReadonlyMap<string, number>;
  readonly groups: readonly SavedGroup[];
}

/** The parsed manifest of a checkpoint. */
export interface Manifest {
  readonly step: number;
  /** Number of ranks that saved. */
  readonly worldSize: number;
  /** The software and hardware that computed, e.g. `cpuMath`, `runtime`, `version`. */
  readonly environment: Readonly<Record<string, string>>;
  /** The files of the model's configuration and of its tensors. */
  readonly files: ReadonlyMap<string, WrittenFile>;
  /** Parameters, by FQN. */
  readonly model: ReadonlyMap<string, SavedTensor>;
  /** Undefined if none was saved. */
  readonly optimizer: SavedOptimizer | undefined;
  /** The trainer's own. */
  readonly state: JsonObject;
}

/** The text of a manifest. */
export function renderManifest(manifest: Manifest): string {
  const { step, worldSize, environment, files, model, optimizer, state } = manifest;
  const tensors = (map: ReadonlyMap<string, SavedTensor>): unknown =>
    [...map].map(([name, { shape, shares }]) => ({
      name,
      shape,
      shares: shares.map(({ file, box: { offsets, sizes } }) => [file, offsets, sizes]),
    }));
  const body = {
    format: MANIFEST_FORMAT,
    formatVersion: MANIFEST_VERSION,
    step,
    worldSize,
    environment,
    files: Object.fromEntries(files),
    model: tensors(model),
    optimizer: optimizer === undefined
      ? null
      : { ...optimizer, tensors: tensors(optimizer.tensors), steps: [...optimizer.steps] },
    state,
  };
  return `${JSON.stringify({ ...body, crc32: bodyChecksum(body) })}\n`;
}

/** Checksum of all but the checksum. */
export function bodyChecksum(body: unknown): string {
  return crc32Text(crc32(new TextEncoder().encode(JSON.stringify(body))));
}
