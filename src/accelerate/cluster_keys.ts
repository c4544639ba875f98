/**
 * The keys of Accelerate's file around `fsdp_config`, and the keys of its `parallelism_config`.
 *
 * @module
 */
import * as z from "zod";
import { mixedPrecision } from "./fsdp_keys.ts";
import { bool, choice, type ForeignKey, foreignKey, idleKey, refusedKey, text, whole } from "./key.ts";

const TPU = "TPUs are not supported";
const LATER = "it is not implemented yet";

/** Keys beside `fsdp_config`. */
export const CLUSTER_KEYS: readonly ForeignKey[] = [
  foreignKey(
    "compute_environment",
    choice(["LOCAL_MACHINE", "AMAZON_SAGEMAKER"]),
    "LOCAL_MACHINE",
    (where, to) => where === "LOCAL_MACHINE" || to.refuse("LOCAL_MACHINE", `'${where}', which is not supported`),
  ),
  foreignKey(
    "distributed_type",
    text,
    "FSDP: `strategy: fsdp`; MULTI_CPU and MULTI_GPU: `ddp`; NO: one rank. Others are refused",
    (type, to) => {
      if (type === "FSDP") to.set("strategy", "fsdp");
      else if (type === "MULTI_CPU" || type === "MULTI_GPU") to.set("strategy", "ddp");
      else if (type !== "NO") to.refuse("FSDP, MULTI_CPU, MULTI_GPU or NO", `'${type}', which is not supported`);
    },
  ),
  mixedPrecision,
  foreignKey(
    "num_processes",
    whole(1),
    "ranks that `fullyshard launch` starts",
    (count, to) => void (to.ranks.count = count),
    { question: { text: "Ranks", usual: "1" } },
  ),
  foreignKey(
    "num_machines",
    whole(1),
    "1: several hosts are refused, as `fullyshard run --nnodes` starts them",
    (count, to) => {
      if (count > 1) to.refuse("1", `${count}: start several hosts by 'fullyshard run --nnodes'`);
    },
  ),
  foreignKey("machine_rank", whole(0), "0, as there is one host", (rank, to) => {
    if (rank > 0) to.refuse("0", `${rank}: start several hosts by 'fullyshard run --nnodes'`);
  }),
  foreignKey("main_process_ip", text, "`--master-addr`", (address, to) => void (to.ranks.masterAddr = address)),
  foreignKey("main_process_port", whole(0), "`--master-port`", (port, to) => void (to.ranks.masterPort = port)),
  foreignKey(
    "rdzv_backend",
    text,
    "static or c10d, which on one host are the same",
    (name, to) => name === "static" || name === "c10d" || to.refuse("static or c10d", `'${name}'`),
  ),
  idleKey("same_network", bool, "there is one host"),
  idleKey("main_training_function", text, "a script is run from its top"),
  idleKey("use_cpu", bool, "ranks compute on the CPU unless `device` says `cuda`"),
  idleKey("debug", bool, "calls are always compared between ranks before they run"),
  refusedKey("gpu_ids", "CUDA_VISIBLE_DEVICES chooses cards, one for each rank of a host", ["all"]),
  refusedKey("enable_cpu_affinity", LATER),
  refusedKey("downcast_bf16", TPU),
  ...["tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "tpu_env", "tpu_vm", "command_file", "commands"]
    .map((name) => refusedKey(name, TPU)),
  foreignKey(
    "dynamo_config",
    { schema: z.looseObject({ dynamo_backend: z.unknown() }).partial(), shown: "nothing" },
    "nothing is compiled; a backend other than NO is refused",
    (config, to) => {
      const { dynamo_backend: backend = "NO" } = config;
      if (backend !== "NO" && backend !== null) to.refuse("nothing, as there is no compiler", `'${String(backend)}'`);
    },
  ),
  refusedKey("dynamo_backend", "there is no compiler", ["NO"]),
  refusedKey("deepspeed_config", "DeepSpeed is not supported; use fsdp_config"),
  refusedKey("megatron_lm_config", "Megatron-LM is not supported; use fsdp_config"),
  refusedKey("fp8_config", "fp8 is not implemented yet"),
  refusedKey("mpirun_config", "ranks are started by the launcher"),
  refusedKey("ipex_config", "IPEX is not supported"),
];

/** Keys of `parallelism_config`, without `parallelism_config_`. */
export const PARALLELISM_KEYS: readonly ForeignKey[] = [
  foreignKey(
    "dp_replicate_size",
    whole(1),
    "first number of `mesh`: copies",
    (count, to) => void (to.axes.replicate = count),
  ),
  foreignKey(
    "dp_shard_size",
    whole(1),
    "second number of `mesh`: ranks that share a copy",
    (count, to) => void (to.axes.shard = count),
  ),
  foreignKey("tp_size", whole(1), "`tpSize`: ranks that compute with parts of the weights", (count, to) => {
    to.axes.tensor = count;
  }),
  foreignKey("cp_size", whole(1), "`cpSize`: ranks that share the positions of each row", (count, to) => {
    to.axes.context = count;
  }),
  foreignKey(
    "cp_comm_strategy",
    choice(["allgather", "alltoall"]),
    "`cpCommStrategy`: allgather, or for alltoall ring",
    (name, to) => void (to.axes.commStrategy = name === "alltoall" ? "ring" : name),
  ),
  foreignKey(
    "sp_size",
    whole(1),
    "`cpSize` with `cpCommStrategy: ulysses`: ranks that exchange positions for heads",
    (count, to) => void (to.axes.sequence = count),
  ),
  foreignKey("sp_backend", choice(["deepspeed"]), "deepspeed, whose exchange of heads is this library's own", () => {}),
  ...["cp_backend", "sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation"].map((name) =>
    idleKey(
      name,
      { schema: z.unknown(), shown: "anything" },
      "rows of any length are divided",
    )
  ),
];
