/**
 * The weights that an adapter is trained on, which its checkpoints do not hold: a digest tells whether a run that resumes has the same.
 *
 * @module
 */
import { FLOAT_CODES } from "../checkpoint/format/float_bytes.ts";
import { openStored, type StoredCheckpoint, valuesOf } from "../checkpoint/offline/stored.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { ConfigError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { sha256 } from "../runtime/checksum.ts";
import { numelOf } from "../shape.ts";
import { hasAdapter } from "./adapter_config.ts";
import type { StepContext } from "./step.ts";

/** Blocks of a tensor that are read, from its first element to its last, and their elements: models that were trained apart differ there. */
const [BLOCKS, ELEMENTS] = [4, 256];

/**
 * A digest of the folder that an adapter's model came from: of each tensor's name, dtype, shape and some elements. Rank 0 reads it.
 * Collective.
 *
 * @returns undefined without an adapter, or where the model came from a config
 */
export async function baseWeights(model: CausalLm, group: ProcessGroup): Promise<string | undefined> {
  const folder = model.files?.folder;
  if (folder === undefined || !hasAdapter(model)) return undefined;
  const own = await group.together("read the weights that are adapted", async () => {
    return group.rank === 0 ? await digestOf(folder) : "";
  });
  return group.exchangeText(own, "the digest of the weights that are adapted")[0];
}

async function digestOf(folder: string): Promise<string> {
  using stored = await openStored(folder);
  return sha256(someElements(stored.model)).slice(0, 16);
}

function* someElements(tensors: StoredCheckpoint["model"]): Generator<string | Uint8Array> {
  for (const [name, tensor] of [...tensors].sort(([a], [b]) => a < b ? -1 : 1)) {
    yield `${name} ${tensor.code} [${tensor.shape.join()}]\n`;
    if (!FLOAT_CODES.includes(tensor.code)) continue; // of a buffer that is not read
    const numel = numelOf(tensor.shape);
    const length = Math.min(ELEMENTS, numel);
    for (let block = 0; block < BLOCKS; block++) {
      const start = Math.floor((numel - length) * block / (BLOCKS - 1));
      for (const { buffer, byteOffset, byteLength } of valuesOf(tensor, start, length)) {
        yield new Uint8Array(buffer, byteOffset, byteLength);
      }
    }
  }
}

/**
 * Refuses to resume an adapter on other weights than the checkpoint's run had.
 *
 * @throws {ConfigError}
 */
export function requireSameBase(
  { model, baseWeights: digest }: Pick<StepContext, "model" | "baseWeights">,
  saved: Readonly<Record<string, unknown>>,
): void {
  const before = saved["baseWeights"];
  if (before === undefined || before === digest) return;
  const expected = `the weights that the checkpoint's adapter was trained on (digest ${before})`;
  const got = digest === undefined ? "none" : `'${model.files?.folder}' (digest ${digest})`;
  throw new ConfigError([{ path: "model", expected, got }]);
}
