/**
 * Checkpoints that another program wrote, recognized by their files' names: what they are, and how their weights become
 * a Hugging Face folder. Nothing of them is opened.
 *
 * @module
 */
import { listDirectory, pathKind } from "../../runtime/files.ts";

/** A checkpoint of another program. */
export interface OtherCheckpoint {
  /** The kind of checkpoint, as words that follow "got ". */
  readonly what: string;
  /** True if it is also a Hugging Face folder, which `--model` takes. */
  readonly isModel: boolean;
  /**
   * The way to make a Hugging Face folder of its weights, as words after "write a Hugging Face folder of it "; empty if it is
   * one.
   */
  readonly convert: string;
}

interface Kind {
  readonly what: string;
  /** Matches the name of an entry that no other kind has. */
  readonly sign: RegExp;
  readonly convert: string;
}

const BY_PRETRAINED = "by save_pretrained of transformers";

/** The kinds of folders, the most particular first. */
const FOLDERS: readonly Kind[] = [
  {
    what: "one of DeepSpeed",
    sign: /^(global_step\d+|zero_to_fp32\.py|.*_optim_states\.pt|mp_rank_\d+_model_states\.pt)$/,
    convert: "by its zero_to_fp32.py and save_pretrained",
  },
  {
    what: "one of Megatron",
    sign: /^(latest_checkpointed_iteration\.txt|iter_\d{7}|mp_rank_\d+(_\d+)*|model_optim_rng\.pt|common\.pt)$/,
    convert: "by Megatron's own converter",
  },
  {
    what: "one of Accelerate, with weights of FSDP",
    sign: /^(pytorch_model_fsdp_\d+|pytorch_model_fsdp\.bin)$/,
    convert: "by 'accelerate merge-weights' and save_pretrained",
  },
  {
    what: "one of torchtune",
    sign: /^recipe_state(\.pt)?$/,
    convert: BY_PRETRAINED,
  },
  {
    what: "one of Transformers' Trainer",
    sign: /^(trainer_state\.json|training_args\.bin)$/,
    convert: BY_PRETRAINED,
  },
  {
    what: "one of Accelerate",
    sign: /^(random_states_\d+\.pkl|custom_checkpoint_\d+\.pkl|optimizer(_\d+)?\.bin|scheduler\.bin)$/,
    convert: BY_PRETRAINED,
  },
  {
    what: "one of PyTorch's distributed checkpoint",
    sign: /^(__\d+_\d+\.distcp|\.metadata)$/,
    convert: "by 'python -m torch.distributed.checkpoint.format_utils dcp_to_torch' and save_pretrained",
  },
  { what: "one of NeMo", sign: /\.nemo$/, convert: "by NeMo's own exporter" },
  { what: "one of Lightning", sign: /\.ckpt$/, convert: `from the state_dict in its .ckpt file, ${BY_PRETRAINED}` },
  { what: "one of Orbax", sign: /^(_CHECKPOINT_METADATA|checkpoint\.orbax.*)$/, convert: BY_PRETRAINED },
  { what: "GGUF files", sign: /\.gguf$/, convert: `${BY_PRETRAINED}, which reads them by its gguf_file` },
  {
    what: "a model of Meta's or Mistral's own layout",
    sign: /^consolidated\b.*\.(pth|pt|safetensors)$/,
    convert: "by the family's converter in transformers",
  },
  {
    what: "pickled weights",
    sign: /^(pytorch_model\b.*\.bin|.*\.(pt|pth))$/,
    convert: BY_PRETRAINED,
  },
  { what: "weights of Flax", sign: /^flax_model\b.*\.msgpack$/, convert: BY_PRETRAINED },
  { what: "weights of TensorFlow", sign: /^tf_model\b.*\.h5$/, convert: BY_PRETRAINED },
];

/** The kinds of single files, by the end of their names. */
const FILES: readonly Kind[] = [
  { what: "a file of Lightning or of torch.save", sign: /\.ckpt$/, convert: BY_PRETRAINED },
  { what: "a file of torch.save", sign: /\.(pt|pth|bin|pkl)$/, convert: BY_PRETRAINED },
  { what: "a GGUF file", sign: /\.gguf$/, convert: `${BY_PRETRAINED}, which reads it by its gguf_file` },
  { what: "a NeMo archive", sign: /\.nemo$/, convert: "by NeMo's own exporter" },
];

/** Recognizes a checkpoint of another program; undefined for what is not recognized. */
export function otherCheckpoint(path: string): OtherCheckpoint | undefined {
  const kind = pathKind(path);
  if (kind === "file") {
    const found = FILES.find(({ sign }) => sign.test(path));
    return found === undefined ? undefined : { what: found.what, isModel: false, convert: found.convert };
  }
  if (kind !== "directory") return undefined;
  const names = listDirectory(path);
  const hasWeights = names.includes("model.safetensors") || names.includes("model.safetensors.index.json");
  const isModel = hasWeights && names.includes("config.json");
  const found = FOLDERS.find(({ sign }) => names.some((name) => sign.test(name)));
  if (isModel) return { what: found?.what ?? "a Hugging Face folder, which has no optimizer", isModel, convert: "" };
  return found === undefined ? undefined : { what: found.what, isModel, convert: found.convert };
}

/** The remedy where a training was to resume from a checkpoint of another program. */
export function resumeRemedy(path: string, { isModel, convert }: OtherCheckpoint): string {
  const states = "the states of its optimizer are not read";
  return isModel
    ? `begin from its weights with '--model ${path}' and without '--resume'; ${states}`
    : `write a Hugging Face folder of it ${convert}, and begin from that with '--model'; ${states}`;
}
