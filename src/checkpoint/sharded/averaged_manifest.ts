/**
 * A checkpoint whose tensors are the averages of its weights, which it has as states of the optimizer.
 *
 * @module
 */
import { CheckpointError } from "../../errors.ts";
import { AVERAGE } from "../../optim/averages.ts";
import { pathKind } from "../../runtime/files.ts";
import { type Manifest, MANIFEST_FILE } from "./manifest.ts";

/**
 * The manifest with averages in place of weights. What was not trained has no average, and keeps its weights.
 *
 * @param path of the checkpoint, for messages
 * @throws {CheckpointError} if it has no averages
 */
export function averagedManifest(path: string, manifest: Manifest): Manifest {
  let found = 0;
  const model = [...manifest.model].map(([name, weights]) => {
    const stored = `${name}.${AVERAGE}`;
    const average = manifest.optimizer?.tensors.get(stored);
    if (average === undefined) return [name, weights] as const;
    found++;
    return [name, { ...average, stored }] as const;
  });
  if (found > 0) return { ...manifest, model: new Map(model) };
  throw new CheckpointError(
    path,
    "It has no averages of the weights, which a run keeps with emaDecay ('--ema-decay'): take the weights",
  );
}

/**
 * Refuses to look for averages beside weights that are no checkpoint of this library.
 *
 * @throws {CheckpointError}
 */
export function requireSharded(path: string): void {
  if (pathKind(`${path}/${MANIFEST_FILE}`) === "file") return;
  throw new CheckpointError(
    path,
    `There are no averages beside its weights: expected a checkpoint with ${MANIFEST_FILE}, of a run with emaDecay ('--ema-decay')`,
  );
}
