/**
 * The keys of `fsdp_config`: of Transformers' `TrainingArguments`, and, with `fsdp_` before them, of Accelerate's file.
 *
 * @module
 */
import {
  bool,
  choice,
  type ForeignKey,
  foreignKey,
  idleKey,
  type KeyTranslation,
  names,
  refusedKey,
  whole,
} from "./key.ts";

/** FSDP1's strategies, in the order of their numbers. */
export const STRATEGIES = ["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"] as const;
/** Name of a strategy of FSDP1. */
export type Strategy = typeof STRATEGIES[number];

/** Sets what FSDP2 says for a strategy of FSDP1. */
export function setStrategy(strategy: Strategy, to: KeyTranslation): void {
  if (strategy === "NO_SHARD") return to.set("strategy", "ddp");
  to.set("reshardAfterForward", strategy === "FULL_SHARD" || strategy === "HYBRID_SHARD");
  if (strategy.startsWith("HYBRID")) to.set("mesh", "hybrid");
}

/** FSDP2's words for each strategy of FSDP1. */
const STRATEGY_WORDS: Readonly<Record<Strategy, string>> = {
  FULL_SHARD: "reshard_after_forward: true",
  SHARD_GRAD_OP: "reshard_after_forward: false",
  NO_SHARD: "data parallel without sharding (DDP)",
  HYBRID_SHARD: "reshard_after_forward: true within a host, and a copy on each",
  HYBRID_SHARD_ZERO2: "reshard_after_forward: false within a host, and a copy on each",
};

const FSDP1 = { isFsdp1: true } as const;

/** The key `mixed_precision`, here and beside `fsdp_config`. */
export const mixedPrecision: ForeignKey = foreignKey(
  "mixed_precision",
  choice(["no", "bf16", "fp16", "fp8"]),
  "`precision`: what is computed in and gathered; weights and reductions stay float32. fp8 is refused",
  (word, to) => {
    if (word === "fp8") return to.refuse("no, bf16 or fp16", "'fp8', which is not implemented yet");
    to.set("precision", { no: "float32", bf16: "bfloat16", fp16: "float16" }[word]);
  },
  { question: { text: "Mixed precision", usual: "no" } },
);

const XLA = "PyTorch/XLA and TPUs are not supported";

/** The keys. */
export const FSDP_KEYS: readonly ForeignKey[] = [
  foreignKey(
    "version",
    whole(1),
    "2; with 1, FSDP1's names are read as FSDP2's, as every time",
    (version, to) => {
      if (version > 2) to.refuse("1 or 2", String(version));
      if (version === 1) to.notice("FSDP1 is taken as FSDP2, the only version here");
    },
    { question: { text: "FSDP version", usual: "2" } },
  ),
  foreignKey(
    "reshard_after_forward",
    choice(["true", "false", ...STRATEGIES]),
    "`reshardAfterForward`; a strategy of FSDP1 is read as `sharding_strategy`",
    (word, to) => {
      if (word === "true" || word === "false") return to.set("reshardAfterForward", word === "true");
      to.notice(`FSDP1's ${word} is ${STRATEGY_WORDS[word]}`);
      setStrategy(word, to);
    },
    { question: { text: "Free whole parameters after the forward", usual: "true" } },
  ),
  foreignKey(
    "sharding_strategy",
    choice(STRATEGIES, true),
    "FULL_SHARD: `reshardAfterForward: true`; SHARD_GRAD_OP: false; HYBRID_SHARD, HYBRID_SHARD_ZERO2: likewise with `mesh: hybrid`; " +
      "NO_SHARD: `strategy: ddp`",
    (strategy, to) => {
      to.notice(`FSDP1's ${strategy} is ${STRATEGY_WORDS[strategy]}`);
      setStrategy(strategy, to);
    },
    FSDP1,
  ),
  foreignKey(
    "auto_wrap_policy",
    choice(["TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"]),
    "`fsdpPlan`: `transformer`, `size`, `none`",
    (policy, to) => void (to.wrapping.policy = policy),
    { question: { text: "What is gathered at a time", usual: "TRANSFORMER_BASED_WRAP" } },
  ),
  foreignKey(
    "transformer_layer_cls_to_wrap",
    names,
    "`classes` of `fsdpPlan: transformer`, by Hugging Face's names; empty: the model's blocks",
    (classes, to) => void (to.wrapping.classes = classes),
    { question: { text: "Classes of the layers to wrap, with commas; empty: the model's own", usual: "" } },
  ),
  foreignKey(
    "min_num_params",
    whole(0),
    "`minNumParams` of `fsdpPlan: size`; counts with SIZE_BASED_WRAP only",
    (count, to) => void (to.wrapping.minNumParams = count),
    { question: { text: "Least parameters of a unit", usual: "100000000" } },
  ),
  foreignKey(
    "state_dict_type",
    choice(["FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"]),
    "`stateDictType`: FULL_STATE_DICT puts a Hugging Face folder, `model`, into each checkpoint; the shards are there too. " +
      "LOCAL_STATE_DICT, which FSDP2 has no longer, is refused",
    (type, to) => {
      if (type === "LOCAL_STATE_DICT") {
        return to.refuse("SHARDED_STATE_DICT or FULL_STATE_DICT", "'LOCAL_STATE_DICT', which FSDP2 has no longer");
      }
      to.set("stateDictType", type === "FULL_STATE_DICT" ? "full" : "sharded");
    },
    { question: { text: "What a checkpoint holds", usual: "SHARDED_STATE_DICT" } },
  ),
  ...(["cpu_ram_efficient_loading", "sync_module_states"] as const).map((name) =>
    foreignKey(
      name,
      bool,
      "`broadcastFromRank0`, if either is true: rank 0 alone reads files, and sends the others what they hold; else each rank reads " +
        "that itself",
      (on, to) => {
        if (on) to.set("broadcastFromRank0", true);
        if (name === "sync_module_states") to.notice(`FSDP2 has no such key; here it is broadcastFromRank0: ${on}`);
      },
      name === "sync_module_states"
        ? FSDP1
        : { question: { text: "Let rank 0 alone read the weights, and send the others theirs", usual: "yes" } },
    )
  ),
  foreignKey(
    "activation_checkpointing",
    bool,
    "`activationCheckpointing: full`",
    (on, to) => to.set("activationCheckpointing", on ? "full" : "none"),
    { question: { text: "Compute activations again in the backward", usual: "no" } },
  ),
  ...(["cpu_offload", "offload_params"] as const).map((name) =>
    foreignKey(
      name,
      bool,
      "`cpuOffload`: shards, gradients and optimizer states lie in host memory",
      (on, to) => to.set("cpuOffload", on),
      name === "offload_params"
        ? { question: { text: "Keep shards, gradients and optimizer states in host memory", usual: "no" } }
        : {},
    )
  ),
  ...(["backward_prefetch", "backward_prefetch_policy"] as const).map((name) =>
    foreignKey(
      name,
      choice(["BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"]),
      "BACKWARD_PRE: `backwardPrefetch: true`, as FSDP2 always does; the others: false",
      (when, to) => {
        if (when === "BACKWARD_POST") to.notice("FSDP2 has BACKWARD_POST no longer: nothing is gathered ahead");
        else to.notice(`FSDP2 has no such key; here ${when} is backwardPrefetch: ${when === "BACKWARD_PRE"}`);
        to.set("backwardPrefetch", when === "BACKWARD_PRE");
      },
      FSDP1,
    )
  ),
  foreignKey(
    "forward_prefetch",
    bool,
    "`forwardPrefetch`: the next unit is gathered while one computes",
    (on, to) => {
      to.notice(`FSDP2 has no such key; here it is forwardPrefetch: ${on}`);
      to.set("forwardPrefetch", on);
    },
    FSDP1,
  ),
  idleKey("use_orig_params", bool, "parameters are always the model's own", FSDP1),
  idleKey(
    "limit_all_gathers",
    bool,
    "gathers are always limited: a unit's memory is given out before it is gathered",
    FSDP1,
  ),
  mixedPrecision,
  ...["xla", "xla_fsdp_v2", "xla_fsdp_settings", "xla_fsdp_grad_ckpt"].map((name) => refusedKey(name, XLA)),
];
