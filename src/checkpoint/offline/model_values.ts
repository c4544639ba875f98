/**
 * The values of a model's parameters as they lie on the disk, in a sharded checkpoint or in a Hugging Face folder, read a
 * piece at a time. Names, shapes and dtypes are checked first, so that nothing is written of what does not fit.
 *
 * @module
 */
import { CheckpointError } from "../../errors.ts";
import { pathKind } from "../../runtime/files.ts";
import { fullBox, sharedSlices } from "../../tensor/shard_layout.ts";
import { refuseAdapter } from "../format/adapters.ts";
import type { StoredTensor } from "../format/dcp_shards.ts";
import { openHfWeights } from "../format/hf_index.ts";
import { ALONE } from "../format/ranks.ts";
import { checkWeights } from "../hugging_face/load.ts";
import { MANIFEST_FILE } from "../sharded/manifest.ts";
import { tensorsOf, tiedNamesOf } from "../state_dict/savable.ts";
import { requireFit, type SavableModel } from "../state_dict/state_dict.ts";
import { openStored, valuesOf } from "./stored.ts";

/** The stored values of a model, open for reading. */
export interface ModelValues extends Disposable {
  /**
   * Elements of a parameter or buffer in row-major order, as float32, piece by piece; a piece's memory is used again.
   *
   * @throws {CheckpointError} if a file is damaged
   */
  readonly read: (fqn: string, start: number, length: number) => Generator<Float32Array<ArrayBuffer>, void>;
}

/** Elements of a parameter that lie one after the other in a stored tensor. */
interface StoredRun {
  readonly stored: StoredTensor;
  readonly from: number;
  /** Of the first in the parameter. */
  readonly offset: number;
  readonly length: number;
}

/**
 * Opens the weights of a model.
 *
 * @param path a sharded checkpoint of this library, or a folder with weights of Hugging Face or of PyTorch's writer
 * @param model of the same config, with or without memory
 * @param averages true for the averages of the weights in place of these
 * @throws {CheckpointError} listing all that does not fit, or if a file is damaged, or if there are no averages
 * @throws {FileError} if a file cannot be read
 */
export async function openModelValues(
  path: string,
  model: SavableModel,
  averages: boolean = false,
): Promise<ModelValues> {
  refuseAdapter(path);
  using opened = new DisposableStack();
  const runs = averages || pathKind(`${path}/${MANIFEST_FILE}`) === "file"
    ? shardedRuns(opened.use(await openStored(path, averages)), model)
    : await folderRuns(opened.use(await openHfWeights(path)), model);
  const kept = opened.move();
  return {
    *read(fqn, start, length) {
      const all = runs.get(fqn);
      if (all === undefined) throw new CheckpointError(path, "There is no parameter of that name", fqn);
      const end = start + length;
      for (const run of all) {
        const [first, last] = [Math.max(run.offset, start), Math.min(run.offset + run.length, end)];
        if (first < last) yield* valuesOf(run.stored, run.from + first - run.offset, last - first);
      }
    },
    [Symbol.dispose]: () => kept.dispose(),
  };
}

type Runs = ReadonlyMap<string, readonly StoredRun[]>;

/** A sharded checkpoint has each parameter as one tensor. */
function shardedRuns({ path, model: all }: Awaited<ReturnType<typeof openStored>>, model: SavableModel): Runs {
  const tiedNames = tiedNamesOf(model);
  const parts = new Map(tensorsOf(model).map(({ part }) => [part.fqn, part.shape]));
  const found = new Map([...all].filter(([name]) => !tiedNames.has(name) || parts.has(name)));
  requireFit(parts, found, { where: path, what: "model", codes: [...found.values()].map(({ code }) => code) });
  return new Map([...found].map(([name, stored]) => {
    const length = stored.shape.reduce((product, size) => product * size, 1);
    return [name, [{ stored, from: 0, offset: 0, length }]];
  }));
}

/** A Hugging Face folder may have a parameter in several tensors: each expert's for itself. */
async function folderRuns(weights: Awaited<ReturnType<typeof openHfWeights>>, model: SavableModel): Promise<Runs> {
  const { tensors, stored } = await checkWeights(model, weights, ALONE, "model");
  const runs = new Map<string, StoredRun[]>();
  for (const { name, part: { fqn, shape }, box } of tensors) {
    const own = runs.get(fqn) ?? [];
    for (const { inFirst, inSecond, length } of sharedSlices(box, fullBox(shape))) {
      own.push({ stored: stored(name), from: inFirst, offset: inSecond, length });
    }
    runs.set(fqn, own);
  }
  for (const own of runs.values()) own.sort((a, b) => a.offset - b.offset);
  return runs;
}
