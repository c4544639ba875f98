/**
 * Reading a manifest, which may be cut off, damaged or made up: its full text is checked, the files that it names by
 * `find.ts`.
 *
 * @module
 */
import * as z from "zod";
import { at } from "../../at.ts";
import { problemsOf } from "../../config/problems.ts";
import { CheckpointError } from "../../errors.ts";
import { isJsonObject, type JsonObject, kindOf, parseJsonObject } from "../../json.ts";
import { numelOf, type Shape } from "../../shape.ts";
import { overlapIn } from "../format/boxes.ts";
import { hasAllChecksums } from "../format/pieces.ts";
import { MANIFEST_DEPTH } from "../state_dict/savable.ts";
import { bodyChecksum, type Manifest, MANIFEST_FORMAT, MANIFEST_VERSION, type SavedShare } from "./manifest.ts";

/** Reads a manifest. @throws {CheckpointError} if it is cut off, damaged, of a later version, or does not make sense */
export function parseManifest(bytes: Uint8Array, file: string): Manifest {
  const { crc32: expected, ...body } = parseJsonObject(bytes, { file, what: "manifest", maxDepth: MANIFEST_DEPTH });
  const refuse = (detail: string): CheckpointError => new CheckpointError(file, detail);
  if (body["format"] !== MANIFEST_FORMAT) {
    throw refuse(`format must be '${MANIFEST_FORMAT}', got ${kindOf(body["format"])}`);
  }
  if (body["formatVersion"] !== MANIFEST_VERSION) {
    throw refuse(
      `formatVersion must be ${MANIFEST_VERSION}, got ${kindOf(body["formatVersion"])}: it is of another version`,
    );
  }
  const found = bodyChecksum(body);
  if (expected !== found) throw refuse(`The checksum should be ${kindOf(expected)}, got "${found}": it is damaged`);
  const result = (checked ??= schema()).safeParse(body);
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

/** The schema, made when it is first needed: making it again takes longer than reading a small manifest. */
let checked: ReturnType<typeof schema> | undefined;

/** The schema of a manifest's text, without format and checksum. */
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

/** Tensors by name. The shares of a tensor must cover all of it. */
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
    const [one, two] = overlapIn(parsed.map(({ box }) => box)) ?? [];
    if (one !== undefined && two !== undefined) {
      const text = [one, two].map(({ offsets, sizes }) => `[${sizes.join(", ")}] at [${offsets.join(", ")}]`).join(
        " and ",
      );
      throw new CheckpointError(path, `Expected boxes that share no element, got ${text}`, name);
    }
    return [name, { shape, shares: parsed }];
  }));
}

/** True if the offsets and sizes are a box within a shape. */
function isWithin(shape: Shape, offsets: Shape, sizes: Shape): boolean {
  return offsets.length === shape.length && sizes.length === shape.length &&
    shape.every((size, dim) => at(offsets, dim, "offset") + at(sizes, dim, "size") <= size);
}
