/**
 * The manifest of a sharded checkpoint: what it holds, where, and how long and with which checksum every file is. It is
 * written last, so a checkpoint without one was not finished. Checks its own text; files are checked by `find.ts`.
 *
 * @module
 */
import { CheckpointError } from "../errors.ts";
import { crc32 } from "../runtime/checksum.ts";
import { numelOf, type Shape } from "../shape.ts";
import type { Box } from "../tensor/shard_layout.ts";
import type { SavedGroup } from "./group_settings.ts";
import { isJsonObject, type JsonObject, kindOf, parseJsonObject } from "./json.ts";

/** The manifest's name in a checkpoint. */
export const MANIFEST_FILE = "manifest.json";

const FORMAT = "fullyshard-checkpoint";
const VERSION = 2;

/** A file of a checkpoint. */
export interface ManifestFile {
  readonly byteLength: number;
  /** CRC-32, eight hexadecimal digits. */
  readonly crc32: string;
}

/** Elements of a tensor in a file. */
export interface SavedShare {
  readonly file: string;
  readonly box: Box;
}

/** A tensor of a checkpoint. */
export interface SavedTensor {
  readonly shape: Shape;
  /** Together they are the whole. */
  readonly shares: readonly SavedShare[];
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

/** What a manifest says. */
export interface Manifest {
  readonly step: number;
  /** Number of ranks that saved. */
  readonly worldSize: number;
  /** What computed, e.g. `cpuMath`, `runtime`, `version`. */
  readonly environment: Readonly<Record<string, string>>;
  readonly files: ReadonlyMap<string, ManifestFile>;
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
    format: FORMAT,
    formatVersion: VERSION,
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
  return `${JSON.stringify({ ...body, crc32: checksum(body) })}\n`;
}

/**
 * Reads a manifest.
 *
 * @param file where it lies, for errors
 * @throws {CheckpointError} if it is cut off, damaged, of a later version, or does not make sense
 */
export function parseManifest(bytes: Uint8Array, file: string): Manifest {
  const { crc32: expected, ...body } = parseJsonObject(bytes, { file, what: "manifest", maxDepth: 48 });
  const refuse = (detail: string): CheckpointError => new CheckpointError(file, detail);
  if (body["format"] !== FORMAT) throw refuse(`format must be '${FORMAT}', got ${kindOf(body["format"])}`);
  if (body["formatVersion"] !== VERSION) {
    throw refuse(`formatVersion must be ${VERSION}, got ${kindOf(body["formatVersion"])}: it is of another version`);
  }
  const found = checksum(body);
  if (expected !== found) throw refuse(`The checksum should be ${kindOf(expected)}, got "${found}": it is damaged`);
  const { step, worldSize, environment, files, model, optimizer, state } = body;
  if (!isCount(step)) throw refuse(`step must be an integer from 0, got ${kindOf(step)}`);
  if (!isCount(worldSize) || worldSize === 0) throw refuse(`worldSize must be positive, got ${kindOf(worldSize)}`);
  if (!isJsonObject(state)) throw refuse(`state must be an object, got ${kindOf(state)}`);
  const held = parseFiles(files, refuse);
  return {
    step,
    worldSize,
    environment: parseStrings(environment, refuse),
    files: held,
    model: parseTensors(model, held, file),
    optimizer: optimizer === null ? undefined : parseOptimizer(optimizer, held, file),
    state,
  };
}

type Refuse = (detail: string) => CheckpointError;

function checksum(body: unknown): string {
  return crc32(new TextEncoder().encode(JSON.stringify(body))).toString(16).padStart(8, "0");
}

function isCount(value: unknown): value is number {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0;
}

function parseStrings(value: unknown, refuse: Refuse): Readonly<Record<string, string>> {
  if (!isJsonObject(value)) throw refuse(`environment must be an object, got ${kindOf(value)}`);
  return Object.fromEntries(Object.entries(value).map(([key, text]) => [key, String(text)]));
}

function parseFiles(value: unknown, refuse: Refuse): ReadonlyMap<string, ManifestFile> {
  if (!isJsonObject(value)) throw refuse(`files must be an object, got ${kindOf(value)}`);
  const files = new Map<string, ManifestFile>();
  for (const [name, entry] of Object.entries(value)) {
    // A name with a path in it would read files that are not the checkpoint's.
    if (!/^[^/\\\0]+$/.test(name)) throw refuse(`files must lie in the checkpoint, got ${JSON.stringify(name)}`);
    const { byteLength, crc32 } = isJsonObject(entry) ? entry : {};
    if (!isCount(byteLength) || typeof crc32 !== "string") {
      throw refuse(`files must have byteLength and crc32, got ${kindOf(entry)} for ${JSON.stringify(name)}`);
    }
    files.set(name, { byteLength, crc32 });
  }
  return files;
}

function parseTensors(
  value: unknown,
  files: ReadonlyMap<string, ManifestFile>,
  file: string,
): ReadonlyMap<string, SavedTensor> {
  if (!Array.isArray(value)) throw new CheckpointError(file, `Tensors must be an array, got ${kindOf(value)}`);
  const tensors = new Map<string, SavedTensor>();
  for (const item of value) {
    const { name, shape, shares } = isJsonObject(item) ? item : {};
    if (typeof name !== "string" || !Array.isArray(shape) || !shape.every(isCount) || !Array.isArray(shares)) {
      throw new CheckpointError(file, `A tensor must have name, shape and shares, got ${kindOf(item)}`);
    }
    let numel = 0;
    const parsed = shares.map((share: unknown): SavedShare => {
      const [of, offsets, sizes] = Array.isArray(share) ? share : [];
      if (typeof of !== "string" || !files.has(of) || !isWithin(shape, offsets, sizes)) {
        throw new CheckpointError(
          file,
          `Expected a file and a box of [${shape.join(", ")}], got ${kindOf(share)}`,
          name,
        );
      }
      numel += numelOf(sizes);
      return { file: of, box: { offsets, sizes } };
    });
    if (numel !== numelOf(shape)) {
      throw new CheckpointError(file, `Expected boxes of ${numelOf(shape)} elements, got ${numel}`, name);
    }
    tensors.set(name, { shape, shares: parsed });
  }
  return tensors;
}

/** Whether two lists are a box of a shape. */
function isWithin(shape: Shape, offsets: unknown, sizes: unknown): boolean {
  const isList = (list: unknown): list is number[] =>
    Array.isArray(list) && list.length === shape.length && list.every(isCount);
  return isList(offsets) && isList(sizes) &&
    shape.every((size, dim) => (offsets[dim] ?? NaN) + (sizes[dim] ?? NaN) <= size);
}

function parseOptimizer(value: unknown, files: ReadonlyMap<string, ManifestFile>, file: string): SavedOptimizer {
  const refuse: Refuse = (detail) => new CheckpointError(file, detail);
  const { tensors, stepsTaken, steps, groups } = isJsonObject(value) ? value : {};
  if (!isCount(stepsTaken)) throw refuse(`stepsTaken must be an integer from 0, got ${kindOf(stepsTaken)}`);
  if (!Array.isArray(steps)) throw refuse(`steps must be an array, got ${kindOf(steps)}`);
  if (!Array.isArray(groups)) throw refuse(`groups must be an array, got ${kindOf(groups)}`);
  return {
    tensors: parseTensors(tensors, files, file),
    stepsTaken,
    steps: new Map(steps.map((pair: unknown): readonly [string, number] => {
      const [name, count] = Array.isArray(pair) ? pair : [];
      if (typeof name !== "string" || !isCount(count)) throw refuse(`steps must be pairs, got ${kindOf(pair)}`);
      return [name, count];
    })),
    groups: groups.map((group: unknown): SavedGroup => {
      const { parameters, settings } = isJsonObject(group) ? group : {};
      if (!Array.isArray(parameters) || !isJsonObject(settings)) {
        throw refuse(`A group must have parameters and settings, got ${kindOf(group)}`);
      }
      return { parameters: parameters.map(String), settings };
    }),
  };
}
