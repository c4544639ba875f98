/**
 * The only reader of environment variables: one declared table, with typed readers over it. A value that cannot be
 * parsed is a ConfigError naming the variable. Nothing is read at import time, and nothing is ever written: C code does
 * not see what a runtime writes to its own copy (see `ffi/posix.ts` for `setenv`).
 *
 * Permission on Deno: `--allow-env` for the names of {@link ENV}. A variable that may not be read counts as not set.
 * Only the variables that tell a rank its number, or name a launcher, are different: a process that cannot read them would train alone, so
 * permission for them is requested, and a refusal is an error.
 *
 * @module
 */
import process from "node:process";
import { ConfigError, type ConfigProblem } from "../errors.ts";
import { isPermitted, requestPermission } from "./permissions.ts";
import { type EnclosingLauncher, foreignLauncher, foreignRankError } from "./launchers.ts";
import { isSlurmTask, slurmVariables } from "./slurm.ts";

/** Declaration of one variable. */
export interface EnvVariable {
  /** What the variable means, for documentation and `fullyshard doctor`. */
  readonly meaning: string;
  /** How the variable's text is read. */
  readonly kind: "text" | "whole" | "seconds" | "flag";
  /** Being forbidden to read it is an error, not the same as its absence. */
  readonly mustBeReadable?: boolean;
}

/** All variables that the library reads. */
export const ENV = {
  RANK: { meaning: "global rank of this process, from 0", kind: "whole", mustBeReadable: true },
  WORLD_SIZE: { meaning: "number of ranks in all", kind: "whole", mustBeReadable: true },
  LOCAL_RANK: { meaning: "rank among those of this host", kind: "whole", mustBeReadable: true },
  LOCAL_WORLD_SIZE: { meaning: "number of ranks on this host", kind: "whole", mustBeReadable: true },
  GROUP_RANK: { meaning: "number of this host, from 0", kind: "whole", mustBeReadable: true },
  MASTER_ADDR: { meaning: "address of the host of rank 0", kind: "text", mustBeReadable: true },
  MASTER_PORT: { meaning: "port at which the ranks meet", kind: "whole", mustBeReadable: true },
  FULLYSHARD_RUN_ID: { meaning: "name that the ranks of one run share", kind: "text", mustBeReadable: true },
  FULLYSHARD_TOKEN: {
    meaning: "secret that the ranks of a run on several hosts share: who does not know it is not let in",
    kind: "text",
    mustBeReadable: true,
  },
  FULLYSHARD_RDZV_INSECURE: {
    meaning: "1: hosts meet without FULLYSHARD_TOKEN; set by 'fullyshard run --rdzv-insecure'",
    kind: "whole",
  },
  NCCL_MULTI_RANK_GPU_ENABLE: { meaning: "1: NCCL 2.30 and newer joins ranks that have one card", kind: "whole" },
  NCCL_WIN_ENABLE: { meaning: "0: NCCL registers no memory, and gathers by kernels", kind: "whole" },
  FULLYSHARD_LAUNCHER: {
    meaning: "whose variables say which rank this is: torchrun, slurm, or none; by default torchrun's, else SLURM's",
    kind: "text",
  },
  SLURM_PROCID: { meaning: "RANK, of a task that srun started", kind: "whole", mustBeReadable: true },
  SLURM_STEP_NUM_TASKS: { meaning: "WORLD_SIZE, of tasks that srun started", kind: "whole", mustBeReadable: true },
  SLURM_NTASKS: { meaning: "the same, where SLURM_STEP_NUM_TASKS is not set", kind: "whole", mustBeReadable: true },
  SLURM_LOCALID: { meaning: "LOCAL_RANK, of a task that srun started", kind: "whole", mustBeReadable: true },
  SLURM_NTASKS_PER_NODE: {
    meaning: "LOCAL_WORLD_SIZE, of tasks that srun started",
    kind: "whole",
    mustBeReadable: true,
  },
  SLURM_STEP_TASKS_PER_NODE: {
    meaning: "the same, such as 4(x2), where that is not set",
    kind: "text",
    mustBeReadable: true,
  },
  SLURM_NODEID: { meaning: "GROUP_RANK, of a task that srun started", kind: "whole", mustBeReadable: true },
  SLURM_STEP_NODELIST: {
    meaning: "hosts of srun's tasks; the first is MASTER_ADDR",
    kind: "text",
    mustBeReadable: true,
  },
  SLURM_JOB_ID: {
    meaning: "number of SLURM's job, from which MASTER_PORT follows",
    kind: "whole",
    mustBeReadable: true,
  },
  SLURM_STEP_ID: { meaning: "number of srun's step in it", kind: "whole", mustBeReadable: true },
  OMPI_COMM_WORLD_RANK: { meaning: "rank that Open MPI's mpirun gives", kind: "text", mustBeReadable: true },
  OMPI_COMM_WORLD_SIZE: { meaning: "number of ranks of Open MPI's mpirun", kind: "text", mustBeReadable: true },
  OMPI_COMM_WORLD_LOCAL_RANK: {
    meaning: "rank on this host that Open MPI's mpirun gives",
    kind: "text",
    mustBeReadable: true,
  },
  OMPI_COMM_WORLD_LOCAL_SIZE: {
    meaning: "ranks of Open MPI's mpirun on this host",
    kind: "text",
    mustBeReadable: true,
  },
  MV2_COMM_WORLD_RANK: { meaning: "rank that MVAPICH2's mpirun gives", kind: "text", mustBeReadable: true },
  MV2_COMM_WORLD_SIZE: { meaning: "number of ranks of MVAPICH2's mpirun", kind: "text", mustBeReadable: true },
  MV2_COMM_WORLD_LOCAL_RANK: {
    meaning: "rank on this host that MVAPICH2's mpirun gives",
    kind: "text",
    mustBeReadable: true,
  },
  MV2_COMM_WORLD_LOCAL_SIZE: { meaning: "ranks of MVAPICH2's mpirun on this host", kind: "text", mustBeReadable: true },
  MVP_COMM_WORLD_RANK: { meaning: "rank that MVAPICH's mpirun gives", kind: "text", mustBeReadable: true },
  MVP_COMM_WORLD_SIZE: { meaning: "number of ranks of MVAPICH's mpirun", kind: "text", mustBeReadable: true },
  MVP_COMM_WORLD_LOCAL_RANK: {
    meaning: "rank on this host that MVAPICH's mpirun gives",
    kind: "text",
    mustBeReadable: true,
  },
  MVP_COMM_WORLD_LOCAL_SIZE: { meaning: "ranks of MVAPICH's mpirun on this host", kind: "text", mustBeReadable: true },
  JSM_NAMESPACE_RANK: { meaning: "rank that IBM's jsrun gives", kind: "text", mustBeReadable: true },
  JSM_NAMESPACE_SIZE: { meaning: "number of ranks of IBM's jsrun", kind: "text", mustBeReadable: true },
  JSM_NAMESPACE_LOCAL_RANK: { meaning: "rank on this host that IBM's jsrun gives", kind: "text", mustBeReadable: true },
  JSM_NAMESPACE_LOCAL_SIZE: { meaning: "ranks of IBM's jsrun on this host", kind: "text", mustBeReadable: true },
  HOROVOD_RANK: { meaning: "rank that horovodrun gives", kind: "text", mustBeReadable: true },
  HOROVOD_SIZE: { meaning: "number of ranks of horovodrun", kind: "text", mustBeReadable: true },
  HOROVOD_LOCAL_RANK: { meaning: "rank on this host that horovodrun gives", kind: "text", mustBeReadable: true },
  HOROVOD_LOCAL_SIZE: { meaning: "ranks of horovodrun on this host", kind: "text", mustBeReadable: true },
  MPIRUN_RANK: { meaning: "rank that mpirun_rsh gives", kind: "text", mustBeReadable: true },
  MPIRUN_NPROCS: { meaning: "number of ranks of mpirun_rsh", kind: "text", mustBeReadable: true },
  FLUX_TASK_RANK: { meaning: "rank that Flux gives", kind: "text", mustBeReadable: true },
  FLUX_JOB_SIZE: { meaning: "number of ranks of a job of Flux", kind: "text", mustBeReadable: true },
  FLUX_TASK_LOCAL_ID: { meaning: "rank on this host that Flux gives", kind: "text", mustBeReadable: true },
  MP_CHILD: { meaning: "rank that IBM's poe gives", kind: "text", mustBeReadable: true },
  MP_PROCS: { meaning: "number of ranks of IBM's poe", kind: "text", mustBeReadable: true },
  PMI_RANK: { meaning: "rank that MPICH's or Intel's mpiexec gives", kind: "text", mustBeReadable: true },
  PMI_ID: { meaning: "the same, of older ones", kind: "text", mustBeReadable: true },
  PMI_SIZE: { meaning: "number of their ranks", kind: "text", mustBeReadable: true },
  PMI_LOCAL_RANK: { meaning: "rank on this host, of Cray's launchers", kind: "text", mustBeReadable: true },
  PMI_LOCAL_SIZE: { meaning: "their ranks on this host", kind: "text", mustBeReadable: true },
  MPI_LOCALRANKID: {
    meaning: "rank on this host that MPICH's or Intel's mpiexec gives",
    kind: "text",
    mustBeReadable: true,
  },
  MPI_LOCALNRANKS: { meaning: "their ranks on this host", kind: "text", mustBeReadable: true },
  PALS_RANKID: { meaning: "rank that Cray's PALS gives", kind: "text", mustBeReadable: true },
  PALS_LOCAL_RANKID: { meaning: "rank on this host that Cray's PALS gives", kind: "text", mustBeReadable: true },
  PALS_LOCAL_SIZE: { meaning: "ranks of Cray's PALS on this host", kind: "text", mustBeReadable: true },
  ALPS_APP_PE: { meaning: "rank that Cray's aprun gives", kind: "text", mustBeReadable: true },
  PMIX_RANK: { meaning: "rank that a launcher with PMIx gives, such as prterun", kind: "text", mustBeReadable: true },
  PMIX_NAMESPACE: { meaning: "name of its job", kind: "text", mustBeReadable: true },
  FULLYSHARD_TIMEOUT_SECONDS: {
    meaning: "how long a collective waits for a late rank, but for one that loads or saves",
    kind: "seconds",
  },
  FULLYSHARD_LOG: { meaning: "least level that is logged: debug, info (the default), warn or error", kind: "text" },
  FULLYSHARD_FLIGHT_DIRECTORY: {
    meaning: "where the last collectives of ranks that stop are written, instead of the temporary directory",
    kind: "text",
  },
  FULLYSHARD_TRACE: {
    meaning: "folder for a trace of each rank; set by 'fullyshard run --trace'",
    kind: "text",
  },
  FULLYSHARD_ACCELERATE_CONFIG: {
    meaning: "Accelerate's file, for scripts that are given none; set by 'fullyshard launch'",
    kind: "text",
  },
  FULLYSHARD_SHM_DIRECTORY: { meaning: "where shared segments are made, instead of /dev/shm", kind: "text" },
  FULLYSHARD_LIBC_LIBRARY: { meaning: "file to load as the C library", kind: "text" },
  FULLYSHARD_ONEDNN_LIBRARY: { meaning: "file to load as oneDNN", kind: "text" },
  FULLYSHARD_CUDART_LIBRARY: { meaning: "file to load as the CUDA runtime", kind: "text" },
  FULLYSHARD_NCCL_LIBRARY: { meaning: "file to load as NCCL", kind: "text" },
  FULLYSHARD_CUBLASLT_LIBRARY: { meaning: "file to load as cuBLASLt", kind: "text" },
  FULLYSHARD_CUDNN_LIBRARY: { meaning: "file to load as cuDNN", kind: "text" },
  FULLYSHARD_NVRTC_LIBRARY: { meaning: "file to load as NVRTC", kind: "text" },
  FULLYSHARD_MPI_LIBRARY: { meaning: "file to load as MPI", kind: "text" },
  FULLYSHARD_KERNEL_CACHE: {
    meaning: "folder for compiled GPU kernels, instead of fullyshard/kernels in the user's folder for caches",
    kind: "text",
  },
  OMP_NUM_THREADS: { meaning: "threads of a native CPU library in one rank", kind: "whole" },
  VIRTUAL_ENV: { meaning: "Python environment searched for native libraries", kind: "text" },
  CONDA_PREFIX: { meaning: "conda environment searched for native libraries", kind: "text" },
  CUDA_HOME: { meaning: "CUDA toolkit searched for native libraries", kind: "text" },
  CUDA_MPS_PIPE_DIRECTORY: { meaning: "where MPS has its pipes, instead of /tmp/nvidia-mps", kind: "text" },
  LD_LIBRARY_PATH: { meaning: "directories searched for native libraries", kind: "text" },
  FULLYSHARD_BUN: { meaning: "file to run as Bun, for ranks under another runtime than the launcher's", kind: "text" },
  FULLYSHARD_DENO: {
    meaning: "file to run as Deno, for ranks under another runtime than the launcher's",
    kind: "text",
  },
  HF_HUB_CACHE: { meaning: "Hugging Face's cache of models, instead of hub in HF_HOME", kind: "text" },
  HUGGINGFACE_HUB_CACHE: { meaning: "the former name of HF_HUB_CACHE", kind: "text" },
  HF_HOME: { meaning: "Hugging Face's folder, instead of ~/.cache/huggingface", kind: "text" },
  TMPDIR: { meaning: "folder for temporary files, instead of /tmp", kind: "text" },
  XDG_CACHE_HOME: { meaning: "the user's folder for caches, instead of ~/.cache", kind: "text" },
  HOME: { meaning: "the user's folder, which a path's ~ stands for", kind: "text" },
  HF_ENDPOINT: { meaning: "server that models are pulled from, instead of https://huggingface.co", kind: "text" },
  HF_TOKEN: { meaning: "token for models that are not public", kind: "text" },
  HF_TOKEN_PATH: { meaning: "file of such a token, instead of token in HF_HOME", kind: "text" },
  HF_HUB_DOWNLOAD_TIMEOUT: { meaning: "seconds without a byte after which a pull asks again; 60", kind: "seconds" },
  HF_HUB_OFFLINE: { meaning: "1, on, yes or true: nothing is pulled", kind: "text" },
  FULLYSHARD_RUNTIME: { meaning: "runtime that the command line itself runs on: bun or deno", kind: "text" },
  FULLYSHARD_STATUS: { meaning: "set by the launcher where it shows status lines of ranks", kind: "flag" },
  FULLYSHARD_NPM: { meaning: "set by the launcher: what npm took of its command line, as JSON", kind: "text" },
  FULLYSHARD_PREFIXED: { meaning: "set by the launcher, which says which rank a line is from", kind: "flag" },
  FULLYSHARD_COLOR: { meaning: "set by the launcher where it shows colors of ranks", kind: "flag" },
  NO_COLOR: { meaning: "any value: no colors", kind: "flag" },
  TERM: { meaning: "kind of terminal; with 'dumb' there are no colors and no live status line", kind: "text" },
  COLUMNS: {
    meaning: "width of help texts where no terminal shows them; set by the launcher to its own",
    kind: "whole",
  },
  CI: { meaning: "any value: the output is not watched, so no live status line", kind: "flag" },
} as const;

/** Name of a declared variable. */
export type EnvName = keyof typeof ENV;

type NamesOf<K extends EnvVariable["kind"]> = {
  [N in EnvName]: (typeof ENV)[N]["kind"] extends K ? N : never;
}[EnvName];

/** Gives the raw text of a variable, undefined if it is not set. */
export type EnvSource = (name: EnvName) => string | undefined;

/** Typed readers over a source. */
export interface Environment {
  /** The text, or undefined when unset or empty. */
  text(name: NamesOf<"text">): string | undefined;
  /** A whole number from 0. @throws {ConfigError} if it is anything else */
  whole(name: NamesOf<"whole">): number | undefined;
  /** A positive number of seconds. @throws {ConfigError} if it is anything else */
  seconds(name: NamesOf<"seconds">): number | undefined;
  /** Whether the variable is set to anything but the empty string. */
  flag(name: NamesOf<"flag">): boolean;
}

/** The variables of this process. */
export function processEnvironment(): Environment {
  return environmentFrom(processSource);
}

/** Readers over any source, e.g. a plain object in tests. */
export function environmentFrom(source: EnvSource): Environment {
  const text = (name: EnvName): string | undefined => {
    const raw = source(name);
    return raw === undefined || raw === "" ? undefined : raw;
  };
  const number = (name: EnvName, expected: string, holds: (raw: string) => boolean): number | undefined => {
    const raw = text(name);
    if (raw === undefined) return undefined;
    if (holds(raw)) return Number(raw);
    throw new ConfigError([{ path: name, expected, got: JSON.stringify(raw) }]);
  };
  const isPositive = (raw: string): boolean => Number.isFinite(Number(raw)) && Number(raw) > 0;
  return {
    text,
    whole: (name) => number(name, "a whole number from 0", isWhole),
    seconds: (name) => number(name, "a positive number of seconds", isPositive),
    flag: (name) => text(name) !== undefined,
  };
}

/** The launch environment of one rank, in full. */
export interface RankEnvironment {
  readonly rank: number;
  readonly worldSize: number;
  readonly localRank: number;
  readonly localWorldSize: number;
  /** Number of this host. */
  readonly groupRank: number;
  readonly masterAddr: string | undefined;
  readonly masterPort: number | undefined;
  /** What the ranks of this run have in common, where the launcher gives it. */
  readonly runId: string | undefined;
}

/**
 * Reads which rank this process is, from torchrun's variables; where none of RANK, WORLD_SIZE, LOCAL_RANK and
 * LOCAL_WORLD_SIZE is set, from those of a task that SLURM's srun started. A rank of another launcher, such as mpirun, is
 * refused. FULLYSHARD_LAUNCHER says whose variables count: `torchrun`, `slurm`, or `none` for a process on its own.
 *
 * Absent LOCAL_* are derived: one host is assumed unless LOCAL_WORLD_SIZE says otherwise.
 *
 * @returns undefined when nothing says that there are several ranks: a process on its own
 * @throws {ConfigError} listing everything that is missing, malformed or inconsistent
 * @throws {UnsupportedError} if a launcher started this process whose ranks cannot be joined
 */
export function readRankEnvironment(source: EnvSource = processSource): RankEnvironment | undefined {
  const chosen = chosenLauncher(source);
  if (chosen === "none") return undefined;
  const own = chosen === "slurm" ? undefined : readTorchrun(source);
  if (own !== undefined || chosen === "torchrun") return own;
  const foreign = chosen === "slurm" ? undefined : foreignLauncher(source);
  if (foreign !== undefined) throw foreignRankError(foreign);
  const variables = slurmVariables(source, chosen === "slurm");
  return variables === undefined ? undefined : readTorchrun((name) => variables[name]);
}

/**
 * Finds what started this process as one of several, to be refused where each of them would start a run of its own.
 * Torchrun's variables do not count, nor does anything where FULLYSHARD_LAUNCHER is `none` or `torchrun`.
 *
 * @throws {ConfigError} if FULLYSHARD_LAUNCHER is none that there is
 */
export function enclosingLauncher(source: EnvSource = processSource): EnclosingLauncher | undefined {
  const chosen = chosenLauncher(source);
  if (chosen === "none" || chosen === "torchrun") return undefined;
  const foreign = foreignLauncher(source);
  if (foreign !== undefined || !isSlurmTask(source)) return foreign;
  const size = source("SLURM_STEP_NUM_TASKS") ?? source("SLURM_NTASKS");
  if (size === "1") return undefined;
  const said = `SLURM_PROCID=${source("SLURM_PROCID")}, SLURM_STEP_NUM_TASKS=${size}`;
  return { name: "SLURM's srun", said, size: Number(size), localSize: undefined };
}

function chosenLauncher(source: EnvSource): "torchrun" | "slurm" | "none" | undefined {
  const chosen = source("FULLYSHARD_LAUNCHER");
  if (chosen === undefined || chosen === "") return undefined;
  if (chosen === "torchrun" || chosen === "slurm" || chosen === "none") return chosen;
  throw new ConfigError([{
    path: "FULLYSHARD_LAUNCHER",
    expected: "torchrun or slurm",
    got: `${JSON.stringify(chosen)}; none is for a process on its own`,
  }]);
}

/** What torchrun's variables say. */
function readTorchrun(source: EnvSource): RankEnvironment | undefined {
  const problems: ConfigProblem[] = [];
  const whole = (name: EnvName, low: number, high: number): number | undefined => {
    const raw = source(name);
    if (raw === undefined || raw === "") return undefined;
    if (isWhole(raw) && Number(raw) >= low && Number(raw) <= high) return Number(raw);
    const range = high === MAX_RANKS ? `from ${low}` : `from ${low} to ${high}`;
    problems.push({ path: name, expected: `a whole number ${range}`, got: JSON.stringify(raw) });
    return NaN; // set, but of no use: it takes no part in the checks below
  };
  const all = {
    RANK: whole("RANK", 0, MAX_RANKS),
    WORLD_SIZE: whole("WORLD_SIZE", 1, MAX_RANKS),
    LOCAL_RANK: whole("LOCAL_RANK", 0, MAX_RANKS),
    LOCAL_WORLD_SIZE: whole("LOCAL_WORLD_SIZE", 1, MAX_RANKS),
  };
  const { RANK: rank, WORLD_SIZE: worldSize, LOCAL_RANK: localRank, LOCAL_WORLD_SIZE: localWorldSize } = all;
  const set = Object.entries(all).filter(([, value]) => value !== undefined).map(([name]) => name);
  if (set.length === 0) return undefined;
  const groupRank = whole("GROUP_RANK", 0, MAX_RANKS);
  const masterPort = whole("MASTER_PORT", 1, 65535);
  const [masterAddr, runId] = [source("MASTER_ADDR"), source("FULLYSHARD_RUN_ID")];

  for (const name of ["RANK", "WORLD_SIZE"] as const) {
    if (all[name] !== undefined) continue;
    problems.push({ path: name, expected: `to be set, as ${set.join(", ")} is`, got: "nothing" });
  }
  const below = (small: keyof typeof all, large: keyof typeof all, orEqual: boolean): void => {
    // What is not set, or of no use, is NaN, which compares with nothing.
    const [a, b] = [all[small] ?? NaN, all[large] ?? NaN];
    if (orEqual ? a > b : a >= b) {
      problems.push({ path: small, expected: `${orEqual ? "at most" : "below"} ${large} = ${b}`, got: String(a) });
    }
  };
  below("RANK", "WORLD_SIZE", false);
  below("LOCAL_WORLD_SIZE", "WORLD_SIZE", true);
  below("LOCAL_RANK", "LOCAL_WORLD_SIZE", false);
  if (localWorldSize === undefined) below("LOCAL_RANK", "WORLD_SIZE", false);
  below("LOCAL_RANK", "RANK", true);
  if (problems.length > 0 || rank === undefined || worldSize === undefined) throw new ConfigError(problems);

  const perHost = localWorldSize ?? worldSize;
  return {
    rank,
    worldSize,
    localRank: localRank ?? rank % perHost,
    localWorldSize: perHost,
    groupRank: groupRank ?? Math.floor(rank / perHost),
    masterAddr: masterAddr === "" ? undefined : masterAddr,
    masterPort,
    runId: runId === "" ? undefined : runId,
  };
}

/** Variables that the package `yaml` asks for when it reads a file. */
const YAML_NAMES = ["LOG_STREAM", "LOG_TOKENS"];

/** The names of all variables that are read, for `--allow-env=`. */
export function environmentNames(): readonly string[] {
  return [...Object.keys(ENV), ...YAML_NAMES];
}

/** What `npm run` took of its command line before `--`. */
export interface NpmConfiguration {
  /** The script that npm runs, e.g. `train`. */
  readonly script: string;
  /** Texts by name, in npm's spelling: `--save-every=2` is `save_every`, a switch is `true`. */
  readonly values: Readonly<Record<string, string>>;
}

/** What npm took of its command line; undefined where npm did not start this process, or that may not be read. */
export function npmConfiguration(): NpmConfiguration | undefined {
  const told = processEnvironment().text("FULLYSHARD_NPM");
  if (told !== undefined) return JSON.parse(told);
  if (!isPermitted({ name: "env" })) return undefined;
  const { npm_lifecycle_event: script, npm_command: command, npm_config_user_agent: agent } = process.env;
  if (script === undefined || command === undefined || !/^(run|run-script|start|test)$/.test(command)) return undefined;
  // Other programs set some of the same variables, and hand flags on.
  if (agent?.startsWith("npm/") !== true) return undefined;
  const values = Object.entries(process.env).flatMap(([name, value]) => {
    const key = /^npm_config_(.+)$/.exec(name)?.[1];
    return key === undefined || value === undefined ? [] : [[key, value] as const];
  });
  return { script, values: Object.fromEntries(values) };
}

/** All variables of this process, to be handed on to processes that it starts; the library decides nothing by them. */
export function inheritedVariables(): Readonly<Record<string, string | undefined>> {
  return { ...process.env };
}

const MAX_RANKS = 2 ** 31 - 1;

function isWhole(text: string): boolean {
  return /^\d{1,15}$/.test(text.trim());
}

function processSource(name: EnvName): string | undefined {
  const declared: EnvVariable = ENV[name];
  if (isPermitted({ name: "env", variable: name })) return process.env[name];
  if (declared.mustBeReadable !== true) return undefined;
  // One question for all variables, not one for each.
  if (requestPermission({ name: "env" })) return process.env[name];
  throw new ConfigError([{
    path: name,
    expected: `permission to read it (${declared.meaning})`,
    got: "none: run Deno with --allow-env",
  }]);
}
