/**
 * Adapters of PEFT in folders that are to be read as a model: refused, unless it was said which adapter is meant, as the base model
 * alone is another model.
 *
 * @module
 */
import { CheckpointError } from "../../errors.ts";
import { type JsonObject, parseJsonObject } from "../../json.ts";
import { listDirectory, pathKind, readBytesSync } from "../../runtime/files.ts";

const ADAPTER_CONFIG = "adapter_config.json";
/** PEFT's files of an adapter. */
const ADAPTER_FILES = [ADAPTER_CONFIG, "adapter_model.safetensors", "adapter_model.bin"];
/** Files of a full model's weights. */
const WEIGHTS = /^(model|pytorch_model|consolidated)\b.*\.(safetensors|bin|pth)$/;

/**
 * Refuses a folder with an adapter: alone, or beside the weights of a model. `transformers` would apply it.
 *
 * @param isNamed true if the user said which adapter is meant, so one beside a model's weights may lie there
 * @throws {CheckpointError} naming the adapter, its base model and what helps
 */
export function refuseAdapter(folder: string, isNamed = false): void {
  const files = ADAPTER_FILES.filter((name) => pathKind(`${folder}/${name}`) !== "none");
  if (files.length === 0) return;
  const { kind, base } = factsOf(folder);
  const of = base === undefined ? "" : ` of '${base}'`;
  const weights = listDirectory(folder).find((name) => WEIGHTS.test(name));
  if (weights === undefined) {
    const remedy =
      "give the folder of the base model, and this one as its adapter ('--adapter', or openModel's 'adapter'), or make " +
      "one model of both by 'fullyshard merge BASE FOLDER --adapter THIS'";
    throw new CheckpointError(folder, `It is a PEFT adapter${kind}${of} and not a model: ${remedy}`);
  }
  if (isNamed) return;
  const remedy = "give the folder as the adapter too ('--adapter', or openModel's 'adapter') to apply it, or move " +
    `${files.join(" and ")} to another folder to use the weights without it`;
  throw new CheckpointError(folder, `A PEFT adapter${kind}${of} lies beside ${weights}: ${remedy}`);
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
