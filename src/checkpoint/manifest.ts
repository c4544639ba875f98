/**
 * The manifest of a sharded checkpoint: what it holds, where, and how long and with which checksums every file is. It is
 * written last, so a checkpoint without one was not finished. Checks its own text; files are checked by `find.ts`.
 *
 * @module
 */
import { at } from "../at.ts";
import * as z from "zod";
import { problemsOf } from "../config/problems.ts";
import { CheckpointError } from "../errors.ts";
import { crc32, crc32Text } from "../runtime/checksum.ts";
import { numelOf, type Shape } from "../shape.ts";
import type { Box } from "../tensor/shard_layout.ts";
import type { SavedGroup } from "./group_settings.ts";
import { isJsonObject, type JsonObject, kindOf, parseJsonObject } from "./json.ts";
import { hasAllChecksums, type WrittenFile } from "./pieces.ts";

/** The manifest's name in a checkpoint. */
export const MANIFEST_FILE = "manifest.json";

const FORMAT = "fullyshard-checkpoint";
const VERSION = 3;

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

/** Reads a manifest. @throws {CheckpointError} if it is cut off, damaged, of a later version, or does not make sense */
export function parseManifest(bytes: Uint8Array, file: string): Manifest {
  const { crc32: expected, ...body } = parseJsonObject(bytes, { file, what: "manifest", maxDepth: 48 });
  const refuse = (detail: string): CheckpointError => new CheckpointError(file, detail);
  if (body["format"] !== FORMAT) throw refuse(`format must be '${FORMAT}', got ${kindOf(body["format"])}`);
  if (body["formatVersion"] !== VERSION) {
    throw refuse(`formatVersion must be ${VERSION}, got ${kindOf(body["formatVersion"])}: it is of another version`);
  }
  const found = checksum(body);
  if (expected !== found) throw refuse(`The checksum should be ${kindOf(expected)}, got "${found}": it is damaged`);
  const result = schema().safeParse(body);
  if (!result.success) {
    const problems = result.error.issues.flatMap((issue) => problemsOf(issue, body, () => ({})));
    throw refuse(problems.map(({ path, expected, got }) => `${path} must be ${expected}, got ${got}`).join("; "));
  }
  const { model, optimizer, ...rest } = result.data;
  const files = new Map(Object.entries(rest.files));
  for (const [name, written] of files) {
    if (!hasAllChecksums(written)) throw refuse(`'${name}' must have a checksum of each piece, got ${kindOf(written)}`);
    // A name with a path in it would read files that are not the checkpoint's.
    if (!/^[^/\\\0]+$/.test(name)) throw refuse(`files must lie in the checkpoint, got ${JSON.stringify(name)}`);
  }
  const tensors = (list: RenderedTensors): Manifest["model"] => parseTensors(list, files, file);
  return {
    ...rest,
    files,
    model: tensors(model),
    optimizer: optimizer === null
      ? undefined
      : { ...optimizer, tensors: tensors(optimizer.tensors), steps: new Map(optimizer.steps) },
  };
}

/** Tensors as the text has them. */
type RenderedTensors = z.infer<ReturnType<typeof schema>>["model"];

/** What the text of a manifest holds besides format and checksum. */
function schema() {
  const count = z.int().min(0);
  const object = z.custom<JsonObject>(isJsonObject, "an object");
  const shape = z.array(count);
  const tensors = z.array(z.object({ name: z.string(), shape, shares: z.array(z.tuple([z.string(), shape, shape])) }));
  return z.object({
    step: count,
    worldSize: z.int().positive(),
    environment: z.record(z.string(), z.string()),
    files: z.record(z.string(), z.object({ byteLength: count, crc32: z.string().regex(/^[0-9a-f]*$/) })),
    model: tensors,
    optimizer: z.nullable(z.object({
      tensors,
      stepsTaken: count,
      steps: z.array(z.tuple([z.string(), count])),
      groups: z.array(z.object({ parameters: z.array(z.string()), settings: object })),
    })),
    state: object,
  });
}

function checksum(body: unknown): string {
  return crc32Text(crc32(new TextEncoder().encode(JSON.stringify(body))));
}

/** Tensors by name, each of which its shares must make up. */
function parseTensors(list: RenderedTensors, files: Manifest["files"], path: string): Manifest["model"] {
  return new Map(list.map(({ name, shape, shares }) => {
    let numel = 0;
    const parsed = shares.map(([file, offsets, sizes]): SavedShare => {
      if (!files.has(file) || !isWithin(shape, offsets, sizes)) {
        const got = kindOf([file, offsets, sizes]);
        throw new CheckpointError(path, `Expected a file and a box of [${shape.join(", ")}], got ${got}`, name);
      }
      numel += numelOf(sizes);
      return { file, box: { offsets, sizes } };
    });
    if (numel !== numelOf(shape)) {
      throw new CheckpointError(path, `Expected boxes of ${numelOf(shape)} elements, got ${numel}`, name);
    }
    return [name, { shape, shares: parsed }];
  }));
}

/** Whether two lists are a box of a shape. */
function isWithin(shape: Shape, offsets: Shape, sizes: Shape): boolean {
  return offsets.length === shape.length && sizes.length === shape.length &&
    shape.every((size, dim) => at(offsets, dim, "offset") + at(sizes, dim, "size") <= size);
}
