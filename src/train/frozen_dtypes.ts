/**
 * Finds the dtypes that a model's frozen parameters are kept in: the dtypes of the files that their values come from.
 *
 * @module
 */
import { openHfWeights } from "../checkpoint/format/hf_index.ts";
import { directoryTensorsOf, nameTensors } from "../checkpoint/hugging_face/names.ts";
import type { SavableModel } from "../checkpoint/state_dict/state_dict.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import type { Device } from "../device/device.ts";
import { isDry } from "../device/dry/device.ts";
import { COMPUTE_DTYPES, type DType, dtypeFrom, float32 } from "../dtype.ts";
import { CheckpointError, FileError } from "../errors.ts";
import { Parameter } from "../tensor/parameter.ts";

/**
 * Sets `frozenDtype` to the dtypes in the headers of a folder's files; if several tensors hold a parameter, to the widest. A parameter
 * that the files lack, or have in a dtype in which nothing computes, stays float32. Every rank must call it.
 *
 * @param model as its files have it
 */
export async function setFileDtypes(
  model: SavableModel,
  folder: string,
  { device, group }: { readonly device: Device; readonly group: ProcessGroup },
): Promise<void> {
  // Rank 0 reads for all, so that all plan alike; in a dry run there is nobody else.
  const own = group.rank === 0 || isDry(device) ? await dtypesOf(model, folder) : {};
  const [first] = isDry(device) ? [] : group.exchangeText(JSON.stringify(own), "dtypes of files");
  const names: Readonly<Record<string, string>> = first === undefined ? own : JSON.parse(first);
  for (const [fqn, parameter] of model.namedParameters()) {
    const name = names[fqn];
    if (name !== undefined) parameter.frozenDtype = dtypeFrom(name);
  }
}

/** Names of the dtypes of parameters' files, by FQN; none where files cannot be read, which loading them says. */
async function dtypesOf(model: SavableModel, folder: string): Promise<Readonly<Record<string, string>>> {
  using weights = await openHfWeights(folder).catch((error: unknown) => {
    if (error instanceof CheckpointError || error instanceof FileError) return undefined;
    throw error;
  });
  if (weights === undefined) return {};
  const { found, undivided } = nameTensors(model, weights.tensors);
  const dtypes = new Map<string, DType>();
  for (const { name, part } of directoryTensorsOf(model, undivided)) {
    if (!(part instanceof Parameter)) continue;
    const code = found.get(name)?.code;
    const dtype = COMPUTE_DTYPES.find(({ safetensors }) => safetensors === code) ?? float32;
    const before = dtypes.get(part.fqn);
    dtypes.set(part.fqn, before === undefined || before === dtype ? dtype : float32);
  }
  return Object.fromEntries([...dtypes].map(([fqn, { name }]) => [fqn, name]));
}
