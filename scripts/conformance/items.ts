/**
 * The requirements of PyTorch's tests of `fully_shard` (`test/distributed/_composable/fsdp/`), item by item, and which
 * tests here show it. Items that fix even chunks of dim 0 are translated to flat shards. The compiler's are left out.
 *
 * @module
 */

/** Tests of one file: those whose names hold the text; all must pass, and there must be one. */
export type Tests = readonly [file: string, name: string];

/** One item. */
export type ConformanceItem =
  & { readonly name: string }
  & (
    | { readonly shownBy: readonly Tests[] }
    /** Has no meaning here. */
    | { readonly notApplicable: string }
  );

const claims = "tests/fsdp/claims_test.ts";
const lifeCycle = "tests/fsdp/life_cycle_test.ts";
const passes = "tests/fsdp/passes_test.ts";
const mistakes = "tests/fsdp/mistakes_test.ts";
const settings = "tests/fsdp/settings_test.ts";
const prefetch = "tests/fsdp/prefetch_test.ts";
const boundary = "tests/fsdp/boundary_test.ts";
const precision = "tests/fsdp/precision_test.ts";
const hsdp = "tests/fsdp/hsdp_test.ts";
const partial = "tests/fsdp/partial_test.ts";
const custom = "tests/fsdp/custom_test.ts";
const placement = "tests/fsdp/placement_test.ts";
const checkpointing = "tests/fsdp/activation_checkpointing_test.ts";
const offload = "tests/fsdp/offload_test.ts";
const semantics = "tests/fsdp/semantics_test.ts";
const parity = "tests/parity/parity_test.ts";
const stateDict = "tests/checkpoint/state_dict_test.ts";
const hfDirectory = "tests/checkpoint/hf_directory_test.ts";
const matrix = "tests/checkpoint/matrix_test.ts";
const gate = "tests/optim/gate_test.ts";
const clip = "tests/optim/clip_test.ts";
const scaler = "tests/optim/grad_scaler_test.ts";
const dry = "tests/train/dry_run_test.ts";
const axesCut = "tests/axes/cut_test.ts";
const axesLlama = "tests/axes/llama_test.ts";
const axesPlacement = "tests/axes/placement_test.ts";
const frozen = "tests/adapters/frozen_dtype_test.ts";

function shown(name: string, ...shownBy: readonly Tests[]): ConformanceItem {
  return { name, shownBy };
}

function notApplicable(name: string, reason: string): ConformanceItem {
  return { name, notApplicable: reason };
}

/** All items, by PyTorch's files. */
export const ITEMS: readonly ConformanceItem[] = [
  shown("_state: one state a call", [settings, "reach the units below"], [claims, "are described with their sizes"]),
  shown("_state: applying twice raises", [claims, "refuses what cannot be sharded"]),
  notApplicable("_state: class swap and slicing", "fullyShard() gives a handle and swaps no class"),
  shown("_state: containers rejected", [claims, "refuses what cannot be sharded"], [settings, "takes the outermost"]),
  notApplicable("_state: deepcopy rejected", "no copy that the language makes of a module is a module"),

  notApplicable("_init: moves to the device", "a module is made on its device; apply() refuses tensors of two by name"),
  shown("_init: mesh ndim and names", [claims, "takes a mesh of one axis or of two"], [
    "tests/fsdp/mixed_test.ts",
    "refuse the bare group of an axis",
  ]),
  shown(
    "_init: managed modules and states (nested, duplicate, shared, list)",
    [settings, "takes the outermost modules, each once"],
    [claims, "shards a root whose parameters"],
    [claims, "refuses a tied weight"],
  ),
  notApplicable("_init: parameter-module infos", "modules keep their parameters; none is swapped"),
  shown("_init: odd-dim shards", [placement, "gives each rank its chunk"], ["tests/fsdp/layout_test.ts", ""]),
  shown("_init: scalar parameters (translated: a flat shard holds them)", [semantics, "of no dims"]),
  notApplicable("_init: non-contiguous parameters raise", "parameters are dense by construction"),
  shown("_init: TP + FSDP placements", [axesPlacement, "have the shapes of their parts"], [
    axesCut,
    "under FSDP begin as",
  ]),
  shown("_init: root detection, FQNs, double lazy init", [claims, "refuses what cannot be sharded"], [
    claims,
    "are described",
  ]),
  shown("_init: multi-module root raises", [settings, "refuses a list as the root"]),
  shown("_init: sharding again before the first forward", [passes, "can be undone and done again"]),
  shown("_init: meta-device init, 1-D and HSDP", [mistakes, "runs no forward and is not saved"], [
    hsdp,
    "gathers and scatters",
  ]),
  shown("_init: text of the error of parameters without values", [mistakes, "runs no forward and is not saved"]),
  shown("_init: rank 0 reads and broadcasts", [hfDirectory, "lets rank 0 read for all"], [
    matrix,
    "lets rank 0 read for all",
  ], [stateDict, "from rank 0, on"]),
  shown("_init: process-group meshes", [claims, "takes a mesh of one axis or of two"]),
  shown("_init: HSDP replicas begin alike", [hsdp, "saves once what"]),
  shown("_init: custom all-reduce hook", [custom, "move what they are set for"]),
  shown("_init: shard_placement_fn: largest dim, -1", [placement, "trains as the flat cut does"]),
  shown("_init: shard_placement_fn: uneven and invalid dims raise", [placement, "refuses dims that there are not"]),
  shown("_init: shard_placement_fn 2-D", [axesPlacement, "sharding along a dim of a part"]),
  shown("_init: frozen parameters of another dtype", [frozen, "kept in the dtype of their file"]),

  shown("_comm: float32 all-gather and reduce-scatter at a simulated large world", [dry, "rank 7 of 200"]),
  shown("_comm: float16 reduce-scatter", [precision, "gradients as float16"]),
  shown(
    "_comm: counts for reshard_after_forward True, False, 2, None",
    [lifeCycle, "gathers blocks twice and the root once"],
    [lifeCycle, "keeps what is not to be freed"],
    [lifeCycle, "frees the root after its forward"],
    [partial, "gathers from all ranks in the forward"],
    [partial, "is false for 1"],
    [partial, "refuses what does not divide"],
  ),
  shown("_comm: manual reshard", [passes, "what was gathered by hand"], [prefetch, "is waited for by its handle"]),
  shown("_comm: divide factor: 1-D, HSDP, mixed precision", [semantics, "divides gradients by the factor"]),
  shown("_comm: most reduce-scatter inputs", [settings, "setMaxReduceScatterInputs()"], [
    settings,
    "shareCommContext()",
  ], [
    settings,
    "reach the units below",
  ]),
  shown("_comm: set_reshard_after_forward", [lifeCycle, "obeys a setting made before"], [
    settings,
    "reach the units below",
  ]),
  shown("_comm: backward prefetch, one forward", [lifeCycle, "gathers one unit ahead in the backward"]),
  shown("_comm: backward prefetch, several forwards", [lifeCycle, "runs a module twice"]),
  shown("_comm: backward prefetch, unused module", [lifeCycle, "survives a module whose output"]),
  shown("_comm: explicit forward prefetch, 1 and 2", [prefetch, "before this one computes"], [
    prefetch,
    "two ahead in the order",
  ]),
  shown("_comm: explicit backward prefetch, 1 and 2", [prefetch, "as backwardPrefetch does"], [
    prefetch,
    "gathers two ahead",
  ]),
  shown(
    "_comm: prefetch inside activation checkpointing",
    [checkpointing, "gathers and reduces in the same order"],
    [checkpointing, "composes with prefetch"],
  ),
  shown("_comm: prefetch of several modules as one unit", [settings, "makes one unit"]),
  shown("_comm: prefetch of a module that does not run", [prefetch, "for a module that does not run"]),
  shown("_comm: misprefetch", [prefetch, "frees what it gathered in vain"]),
  shown("_comm: unshard(async_op=True)", [prefetch, "is waited for by its handle"], [prefetch, "fails by its handle"]),
  shown("_comm: unshard() without parameters, before lazy init", [prefetch, "does nothing for a unit without"]),
  notApplicable(
    "_comm: buffers from the process group",
    "shards lie in the data plane's own windows, from which peers gather",
  ),
  notApplicable("_comm: symmetric memory", "GPU only"),
  notApplicable("_comm: forced sums", "every reduction is a sum that is scaled once"),
  shown("_comm: division at world size 1", [semantics, "one is set: 1 ranks"]),

  notApplicable("_training: inputs to the device", "tensors are made on their device"),
  notApplicable(
    "_training: parameters registered after forward and backward",
    "modules keep their parameters; none is swapped",
  ),
  shown("_training: float64 after init (translated: refused by name)", [
    boundary,
    "refuses dtypes that nothing computes in",
  ]),
  shown("_training: DDP parity, single and several groups", [parity, "same bits on"]),
  shown("_training: parity with injected delays", [semantics, "where a rank is late"]),
  shown(
    "_training: CPU offload parity",
    [offload, "trains to the bits of"],
    [offload, "trains, accumulates and clips to the same bits"],
  ),
  shown("_training: non-root forward and backward", [passes, "does not come through the root's output"], [
    passes,
    "used without its module",
  ]),
  shown("_training: several forwards", [lifeCycle, "runs a module twice"], [lifeCycle, "runs two forwards"]),
  shown("_training: explicit prefetch", [prefetch, "setModulesTo"]),
  notApplicable(
    "_training: post-optimizer event",
    "a gather waits for the last write of its shard by an event of its own",
  ),
  shown(
    "_training: activation checkpointing and groups",
    [checkpointing, "trains to the bits of"],
    [checkpointing, "gathers each unit inside a checkpointed module"],
    [checkpointing, "computes a block again"],
  ),
  shown("_training: shared parameters", [claims, "merges a unit below whose weight is tied"], [parity, "same bits on"]),
  shown("_training: shared parameters of separate groups raise", [claims, "refuses a tied weight"]),
  notApplicable("_training: reused ids of parameters", "parameters are compared as objects"),
  shown(
    "_training: gradient accumulation, with counts",
    [lifeCycle, "adds up gradients without communication"],
    [lifeCycle, "reduces what earlier micro-batches left"],
    [settings, "setIsLastBackward(false)"],
    [settings, "setReshardAfterBackward(false)"],
    [hsdp, "adds up each replica's sums"],
  ),
  shown("_training: 1F1B", [lifeCycle, "runs two forwards before two backwards"]),
  shown("_training: N-D", [axesLlama, "under FSDP and DDP trains as on one rank"]),
  shown("_training: HSDP parity", [parity, "HSDP on"]),
  shown("_training: custom forward method", ["tests/fsdp/forward_method_test.ts", "registerFsdpForwardMethod()"]),
  shown("_training: placement function, parity and contiguity", [placement, "trains as the flat cut does"], [
    placement,
    "computes in bfloat16",
  ]),

  shown("_mixed_precision: compute dtype", [boundary, "casts float"], [precision, "moves parameters as"]),
  shown("_mixed_precision: reduce dtype float32 and bfloat16", [precision, "leads from float32 no further"]),
  shown("_mixed_precision: accumulation in the reduce dtype", [
    precision,
    "on 2 ranks as replicated, and as on one that accumulates",
  ]),
  shown("_mixed_precision: bfloat16 on one submodule", [boundary, "computes one layer in bfloat16"]),
  shown("_mixed_precision: float16 on one submodule", [boundary, "computes one layer in float16"]),
  shown("_mixed_precision: external inputs", [boundary, "casts float inputs"], [boundary, "casts no inputs"]),
  shown("_mixed_precision: norm modules", [parity, "bfloat16 gives the same bits"]),
  notApplicable("_mixed_precision: BatchNorm raises", "there is no BatchNorm"),
  shown("_mixed_precision: reduce dtype is not clamped", [precision, "moves parameters as"]),
  shown("_mixed_precision: dataclass inputs (translated: plain objects)", [boundary, "wherever they lie"]),
  shown("_mixed_precision: buffers are not cast", [boundary, "no buffers"]),

  shown("_frozen: trained and frozen in one group", [semantics, "reduces the trained parameters of a unit alone"]),
  shown("_frozen: across groups, with unfreezing", [claims, "gathers frozen parameters"], [
    semantics,
    "frozen and trained later",
  ]),
  shown("_frozen: several forwards", [semantics, "reduces the trained parameters of a unit alone"]),

  shown("_autograd: unused output", [lifeCycle, "survives a module whose output"], [
    passes,
    "is not held up by a graph",
  ]),
  shown("_autograd: unused module", [claims, "gives no gradient to a unit that is not reached"]),
  shown("_autograd: activations in lists, tuples, dictionaries", [semantics, "hooks activations"]),

  shown("_memory: peak bounds", [lifeCycle, "holds at most the root and one block"], [
    partial,
    "keeps what the dry run says",
  ]),
  shown("_memory: offload", [offload, "has the peaks that are told"], [offload, "takes the shards' terms off"]),

  shown("_overlap: gathers and reductions beside compute (order of events)", [prefetch, "setModulesTo"], [
    dry,
    "finds the step ordered",
  ]),
  notApplicable(
    "_overlap: post-optimizer event",
    "a gather waits for the last write of its shard by an event of its own",
  ),

  shown("_state_dict: save and load, 1-D", [matrix, "gives on any number of ranks"]),
  shown("_state_dict: save and load, HSDP", [hsdp, "saves once what"]),
  shown("_state_dict: 2-D and 3-D", [axesPlacement, "from any mesh to any other"]),
  shown("_state_dict: uneven shards", [matrix, "gives on any number of ranks"], [stateDict, "gives each rank its own"]),
  shown("_state_dict: aliasing of a cached state dict", [stateDict, "is the model's memory"]),
  shown("_state_dict: offload, pinned or not", [offload, "is saved by shards"], [offload, "pins memory unless"]),
  shown("_state_dict: rank 0 takes the full state dict", [stateDict, "gives each rank its own, rank 0 all"]),

  shown("_clip_grad_norm_: 2-norm", [clip, "is torch.nn.utils.clip_grad_norm_"], [parity, "same bits on"]),
  shown(
    "_clip_grad_norm_: norms 1, 3 and inf",
    [clip, "by the 1.0-norm is torch"],
    [clip, "by the 3.0-norm is torch"],
    [clip, "by the inf-norm is torch"],
    [semantics, "gives the same bits for any cut"],
  ),
  shown("_clip_grad_norm_: number of all-reduces (translated: one, over the ranks that shard)", [
    semantics,
    "by one all-reduce",
  ]),

  shown("_grad_scaler: a fault on one rank skips the step on all", [gate, "skips a step with a fault on one"], [
    scaler,
    "where one overflows",
  ]),
  shown("_grad_scaler: scale and backoff", [scaler, "takes the steps that PyTorch takes in float16"]),

  shown("_extensions: training", [placement, "near their masters, which an optimizer moves"]),
  shown("_extensions: end to end from no values", [placement, "near their masters, which an optimizer moves"]),
  notApplicable("_extensions: monkey patch", "an extension is an option, not a method of a tensor class"),
  shown("_extensions: outer size and padding", [placement, "gathers 7 rows over 3"], [
    placement,
    "unequal sizes is found out",
  ]),
  shown("_extensions: HSDP mesh", [placement, "over 2 x 2 ranks"]),

  shown("_ignore_params: DDP(A) + FSDP(B)", [settings, "are neither sharded nor reduced"], [
    settings,
    "must be ignored by every unit",
  ]),
  shown("_logging (translated: calls with unit and phase)", [lifeCycle, "gathers blocks twice"]),
  shown("_grad_dtype: reduced gradients are float32", [precision, "moves parameters as"]),
  shown("_dtensor: dp_mesh_dims", [axesLlama, "on the data axes of a mesh with a tensor axis"]),
  shown("_dtensor: unused parameters count as zeros", [passes, "a share of the sum where one did"]),
];
