/**
 * Writes a trained model: its adapter where it has one, else all of it.
 *
 * @module
 */
import { saveAdapter } from "../adapters/files.ts";
import { loraOf } from "../adapters/lora.ts";
import { withTokenizer } from "../checkpoint/format/companions.ts";
import { saveHfDirectory, type SaveHfOptions } from "../checkpoint/hugging_face/save.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { float32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";

/**
 * Writes a Hugging Face folder of the model, or, if the model has an adapter, a folder of the adapter in PEFT's layout. Every rank must
 * call it.
 *
 * @throws {ArgumentError} for another dtype than float32 with an adapter, as PEFT writes adapters in the dtype of their training
 * @throws {FileError} if a file cannot be written
 */
export async function saveModel(
  model: CausalLm,
  folder: string,
  group: ProcessGroup,
  options: SaveHfOptions = {},
): Promise<void> {
  if (loraOf(model) === undefined) return await saveHfDirectory(model, folder, group, options);
  const { dtype = float32, tokenizerFiles } = options;
  if (dtype !== float32) {
    throw new ArgumentError(
      `Cannot save an adapter in ${dtype.name}: it is float32; call mergeLora first to save the model`,
    );
  }
  const named = tokenizerFiles?.map((file) => [file.slice(file.lastIndexOf("/") + 1), file] as const);
  const companions = named === undefined ? model.companions : withTokenizer(model.companions, named);
  await saveAdapter(model, folder, group, { companions });
}
