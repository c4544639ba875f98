/**
 * Adapters of PEFT, which this library does not apply: a folder that holds one is refused, as the base model alone is
 * another model.
 *
 * @module
 */
import { CheckpointError } from "../../errors.ts";
import { type JsonObject, parseJsonObject } from "../../json.ts";
import { listDirectory, pathKind, readBytesSync } from "../../runtime/files.ts";

const ADAPTER_CONFIG = "adapter_config.json";
/** PEFT's files of an adapter. */
const ADAPTER_FILES = [ADAPTER_CONFIG, "adapter_model.safetensors", "adapter_model.bin"];
/** Files of a whole model's weights. */
const WEIGHTS = /^(model|pytorch_model|consolidated)\b.*\.(safetensors|bin|pth)$/;

/**
 * Refuses a folder with an adapter: alone, or beside the weights of a model. `transformers` would apply it.
 *
 * @throws {CheckpointError} naming the adapter, its base model and what helps
 */
export function refuseAdapter(folder: string): void {
  const files = ADAPTER_FILES.filter((name) => pathKind(`${folder}/${name}`) !== "none");
  if (files.length === 0) return;
  const { kind, base } = factsOf(folder);
  const of = base === undefined ? "" : ` of '${base}'`;
  const weights = listDirectory(folder).find((name) => WEIGHTS.test(name));
  const merge = "Merge it into its base model by PEFT (merge_and_unload, then save_pretrained)";
  if (weights === undefined) {
    const detail = `It is a PEFT adapter${kind}${of} and not a model: adapters are not applied here. ${merge}`;
    throw new CheckpointError(folder, `${detail}, or give the folder of the base model`);
  }
  const beside = `A PEFT adapter${kind}${of} lies beside ${weights}, and adapters are not applied here. ${merge}`;
  const remedy = `or move ${files.join(" and ")} to another folder to use the weights without it`;
  throw new CheckpointError(folder, `${beside}, ${remedy}`);
}

function factsOf(folder: string): { readonly kind: string; readonly base: string | undefined } {
  const file = `${folder}/${ADAPTER_CONFIG}`;
  if (pathKind(file) !== "file") return { kind: "", base: undefined };
  let json: JsonObject;
  try {
    json = parseJsonObject(readBytesSync(file), { file, what: "adapter configuration", maxDepth: 32 });
  } catch (error) {
    if (!(error instanceof CheckpointError)) throw error;
    return { kind: "", base: undefined }; // The folder is refused all the same.
  }
  const [type, base] = [json["peft_type"], json["base_model_name_or_path"]];
  return {
    kind: typeof type === "string" ? ` (${type})` : "",
    base: typeof base === "string" && base !== "" ? base : undefined,
  };
}
