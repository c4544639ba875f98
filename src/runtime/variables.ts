/**
 * The table of environment variables that the library reads, with their meanings. `env.ts` reads them.
 *
 * @module
 */

/** The W&B service that is used unless `WANDB_BASE_URL` names another one. */
export const WANDB_SERVICE = "https://api.wandb.ai";

/** Declaration of one variable. */
export interface EnvVariable {
  /** Meaning of the variable, for documentation and `fullyshard doctor`. */
  readonly meaning: string;
  /** Format of the variable's text. */
  readonly kind: "text" | "integer" | "seconds" | "flag";
  /** An error if reading it is forbidden, instead of treating it as not set. */
  readonly mustBeReadable?: boolean;
}

/** All variables that the library reads. */
export const ENV = {
  RANK: { meaning: "global rank of this process, from 0", kind: "integer", mustBeReadable: true },
  WORLD_SIZE: { meaning: "number of ranks in all", kind: "integer", mustBeReadable: true },
  LOCAL_RANK: { meaning: "rank among those of this host", kind: "integer", mustBeReadable: true },
  LOCAL_WORLD_SIZE: { meaning: "number of ranks on this host", kind: "integer", mustBeReadable: true },
  GROUP_RANK: { meaning: "number of this host, from 0", kind: "integer", mustBeReadable: true },
  MASTER_ADDR: { meaning: "address of the host of rank 0", kind: "text", mustBeReadable: true },
  MASTER_PORT: { meaning: "port at which the ranks meet", kind: "integer", mustBeReadable: true },
  FULLYSHARD_RUN_ID: { meaning: "name that the ranks of one run share", kind: "text", mustBeReadable: true },
  FULLYSHARD_TOKEN: {
    meaning: "secret that the ranks of a run on several hosts share: who does not know it is not let in",
    kind: "text",
    mustBeReadable: true,
  },
  TORCHELASTIC_RUN_ID: { meaning: "name of the run, of all of its starts; set by 'fullyshard run'", kind: "text" },
  TORCHELASTIC_RESTART_COUNT: {
    meaning: "how often ranks were started again after a failure; set by 'fullyshard run --max-restarts'",
    kind: "integer",
  },
  FULLYSHARD_ELASTIC_FOLDER: {
    meaning: "folder of a run whose ranks may change, in this host's memory; set by 'fullyshard run --max-restarts'",
    kind: "text",
  },
  FULLYSHARD_ELASTIC_RANKS: { meaning: "the fewest and the most ranks of such a run, as 2:4", kind: "text" },
  FULLYSHARD_ELASTIC_EVERY: {
    meaning: "steps between two copies of the ranks' state in memory; set by 'fullyshard run --redundancy 1'",
    kind: "integer",
  },
  FULLYSHARD_ELASTIC_HOSTS: { meaning: "set where such a run has several hosts", kind: "flag" },
  FULLYSHARD_ELASTIC_GOES_ON: { meaning: "set where earlier ranks of the run have taken a step", kind: "flag" },
  FULLYSHARD_ELASTIC_SPARE: { meaning: "set for a process that waits for a lost rank's place", kind: "flag" },
  FULLYSHARD_ELASTIC_CAUSE: { meaning: "why such a run's ranks were started again, in words", kind: "text" },
  FULLYSHARD_RDZV_INSECURE: {
    meaning: "1: hosts meet without FULLYSHARD_TOKEN; set by 'fullyshard run --rdzv-insecure'",
    kind: "integer",
  },
  NCCL_MULTI_RANK_GPU_ENABLE: { meaning: "1: NCCL 2.30 and newer joins ranks that have one card", kind: "integer" },
  NCCL_WIN_ENABLE: { meaning: "0: NCCL registers no memory, and gathers by kernels", kind: "integer" },
  FULLYSHARD_LAUNCHER: {
    meaning: "whose variables say which rank this is: torchrun, mpi, slurm, or none; by default the first that are set",
    kind: "text",
  },
  SLURM_PROCID: { meaning: "RANK, of a task that srun started", kind: "integer", mustBeReadable: true },
  SLURM_STEP_NUM_TASKS: { meaning: "WORLD_SIZE, of tasks that srun started", kind: "integer", mustBeReadable: true },
  SLURM_NTASKS: { meaning: "the same, where SLURM_STEP_NUM_TASKS is not set", kind: "integer", mustBeReadable: true },
  SLURM_LOCALID: { meaning: "LOCAL_RANK, of a task that srun started", kind: "integer", mustBeReadable: true },
  SLURM_NTASKS_PER_NODE: {
    meaning: "LOCAL_WORLD_SIZE, of tasks that srun started",
    kind: "integer",
    mustBeReadable: true,
  },
  SLURM_STEP_TASKS_PER_NODE: {
    meaning: "the same, such as 4(x2), where that is not set",
    kind: "text",
    mustBeReadable: true,
  },
  SLURM_NODEID: { meaning: "GROUP_RANK, of a task that srun started", kind: "integer", mustBeReadable: true },
  SLURM_STEP_NODELIST: {
    meaning: "hosts of srun's tasks; the first is MASTER_ADDR",
    kind: "text",
    mustBeReadable: true,
  },
  SLURM_JOB_ID: {
    meaning: "number of SLURM's job, from which MASTER_PORT follows",
    kind: "integer",
    mustBeReadable: true,
  },
  SLURM_STEP_ID: { meaning: "number of srun's step in it", kind: "integer", mustBeReadable: true },
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
  PMI_FD: { meaning: "their stream to the launcher, by which a rank that fails early ends all", kind: "integer" },
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
  TENSORBOARD_LOGGING_DIR: { meaning: "folder of event files, with --report-to tensorboard", kind: "text" },
  MLFLOW_TRACKING_URI: { meaning: "address of the MLflow server, with --report-to mlflow", kind: "text" },
  MLFLOW_EXPERIMENT_NAME: { meaning: "MLflow's experiment; 'Default' unless given", kind: "text" },
  MLFLOW_RUN_ID: { meaning: "MLflow's run to go on with; a new one unless given", kind: "text" },
  MLFLOW_TRACKING_TOKEN: { meaning: "token for MLflow's server", kind: "text" },
  MLFLOW_TRACKING_USERNAME: { meaning: "name for MLflow's server", kind: "text" },
  MLFLOW_TRACKING_PASSWORD: { meaning: "password for MLflow's server", kind: "text" },
  WANDB_API_KEY: { meaning: "key for W&B, with --report-to wandb", kind: "text" },
  WANDB_BASE_URL: { meaning: "address of the W&B server; the public one unless given", kind: "text" },
  WANDB_PROJECT: { meaning: "W&B's project; 'uncategorized' unless given", kind: "text" },
  WANDB_ENTITY: { meaning: "W&B's user or team; the key's own unless given", kind: "text" },
  WANDB_RUN_ID: { meaning: "W&B's run to go on with; a new one unless given", kind: "text" },
  FULLYSHARD_SHM_DIRECTORY: { meaning: "where shared segments are made, instead of /dev/shm", kind: "text" },
  FULLYSHARD_LIBC_LIBRARY: { meaning: "file to load as the C library", kind: "text" },
  FULLYSHARD_CUDART_LIBRARY: { meaning: "file to load as the CUDA runtime", kind: "text" },
  FULLYSHARD_NCCL_LIBRARY: { meaning: "file to load as NCCL", kind: "text" },
  FULLYSHARD_CUBLASLT_LIBRARY: { meaning: "file to load as cuBLASLt", kind: "text" },
  FULLYSHARD_CUDNN_LIBRARY: { meaning: "file to load as cuDNN", kind: "text" },
  FULLYSHARD_NVRTC_LIBRARY: { meaning: "file to load as NVRTC", kind: "text" },
  FULLYSHARD_MPI_LIBRARY: { meaning: "file to load as MPI, instead of the launcher's", kind: "text" },
  OMPI_LIBDIR_LOC: { meaning: "folder of Open MPI's library; set by its mpirun", kind: "text" },
  OPAL_PREFIX: { meaning: "folder of Open MPI", kind: "text" },
  I_MPI_ROOT: { meaning: "folder of Intel MPI", kind: "text" },
  FULLYSHARD_KERNEL_CACHE: {
    meaning: "folder for compiled GPU kernels, instead of fullyshard/kernels in the user's folder for caches",
    kind: "text",
  },
  OMP_NUM_THREADS: { meaning: "threads of a native CPU library in one rank", kind: "integer" },
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
    kind: "integer",
  },
  CI: { meaning: "any value: the output is not watched, so no live status line", kind: "flag" },
} as const;

/** Name of a declared variable. */
export type EnvName = keyof typeof ENV;
