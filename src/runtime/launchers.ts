/**
 * Launchers whose ranks this library cannot join: MPI, PMI and PMIx, and batch systems other than SLURM. Their variables are known so
 * that their ranks are refused: otherwise each rank would train the full model alone.
 *
 * @module
 */
import { UnsupportedError } from "../errors.ts";
import type { EnvSource } from "./env.ts";
import type { EnvName } from "./variables.ts";
import { scriptCommand } from "./processes.ts";

/** Variables by which a launcher marks a process as one of several. */
interface ForeignLauncher {
  readonly name: string;
  readonly rank: EnvName;
  /** Number of all ranks; undefined if the launcher does not give it. */
  readonly size: EnvName | undefined;
  /** Number of ranks on this host. */
  readonly localSize: EnvName | undefined;
  /** All variables that only this launcher sets: one is enough to recognize it. */
  readonly known: readonly EnvName[];
}

/** Launchers. A launcher that also sets the variables of a second one comes before the second. */
const FOREIGN_LAUNCHERS: readonly ForeignLauncher[] = [
  {
    name: "Open MPI's mpirun",
    rank: "OMPI_COMM_WORLD_RANK",
    size: "OMPI_COMM_WORLD_SIZE",
    localSize: "OMPI_COMM_WORLD_LOCAL_SIZE",
    known: ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
  },
  {
    name: "MVAPICH's mpirun",
    rank: "MV2_COMM_WORLD_RANK",
    size: "MV2_COMM_WORLD_SIZE",
    localSize: "MV2_COMM_WORLD_LOCAL_SIZE",
    known: ["MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"],
  },
  {
    name: "MVAPICH's mpirun",
    rank: "MVP_COMM_WORLD_RANK",
    size: "MVP_COMM_WORLD_SIZE",
    localSize: "MVP_COMM_WORLD_LOCAL_SIZE",
    known: ["MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_SIZE", "MVP_COMM_WORLD_LOCAL_SIZE", "MVP_COMM_WORLD_LOCAL_RANK"],
  },
  {
    name: "mpirun_rsh",
    rank: "MPIRUN_RANK",
    size: "MPIRUN_NPROCS",
    localSize: undefined,
    known: ["MPIRUN_RANK", "MPIRUN_NPROCS"],
  },
  {
    name: "IBM's jsrun",
    rank: "JSM_NAMESPACE_RANK",
    size: "JSM_NAMESPACE_SIZE",
    localSize: "JSM_NAMESPACE_LOCAL_SIZE",
    known: ["JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_SIZE", "JSM_NAMESPACE_LOCAL_RANK"],
  },
  {
    name: "Flux's flux run",
    rank: "FLUX_TASK_RANK",
    size: "FLUX_JOB_SIZE",
    localSize: undefined,
    known: ["FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID"],
  },
  {
    name: "horovodrun",
    rank: "HOROVOD_RANK",
    size: "HOROVOD_SIZE",
    localSize: "HOROVOD_LOCAL_SIZE",
    known: ["HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_SIZE", "HOROVOD_LOCAL_RANK"],
  },
  { name: "IBM's poe", rank: "MP_CHILD", size: "MP_PROCS", localSize: undefined, known: ["MP_CHILD", "MP_PROCS"] },
  {
    name: "a launcher that speaks PMI, such as MPICH's or Intel's mpiexec",
    rank: "PMI_RANK",
    size: "PMI_SIZE",
    localSize: "MPI_LOCALNRANKS",
    known: ["PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "PMI_ID", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", "MPI_LOCALRANKID"],
  },
  {
    name: "Cray's PALS (aprun, mpiexec)",
    rank: "PALS_RANKID",
    size: "PMI_SIZE",
    localSize: "PALS_LOCAL_SIZE",
    known: ["PALS_RANKID", "PALS_LOCAL_SIZE", "PALS_LOCAL_RANKID"],
  },
  { name: "Cray's aprun", rank: "ALPS_APP_PE", size: "PMI_SIZE", localSize: undefined, known: ["ALPS_APP_PE"] },
  {
    name: "a launcher that speaks PMIx, such as prterun",
    rank: "PMIX_RANK",
    size: "OMPI_COMM_WORLD_SIZE",
    localSize: undefined,
    known: ["PMIX_RANK"],
  },
];

/** The launcher that started this process as one of several, or of an unknown number. */
export interface EnclosingLauncher {
  readonly name: string;
  /** Its variables for this process, such as `OMPI_COMM_WORLD_RANK=1, OMPI_COMM_WORLD_SIZE=2`. */
  readonly said: string;
  /** Number of all ranks; undefined if it is not given. */
  readonly size: number | undefined;
  /** Ranks on this host; undefined if they are not given. */
  readonly localSize: number | undefined;
}

/**
 * Finds the launcher, other than torchrun and SLURM, that started this process as one of several.
 *
 * Tasks of SLURM's srun have variables of PMI or PMIx too. They count as srun's own if their numbers are SLURM's.
 *
 * @returns undefined if there is none, or if each launcher found started this process alone
 */
export function foreignLauncher(source: EnvSource): EnclosingLauncher | undefined {
  const value = (name: EnvName | undefined): string | undefined => {
    const text = name === undefined ? undefined : source(name)?.trim();
    return text === "" ? undefined : text;
  };
  const found = FOREIGN_LAUNCHERS.find((launcher) =>
    launcher.known.some((name) => value(name) !== undefined) && value(launcher.size) !== "1" &&
    !isOfSlurm(launcher, value)
  );
  if (found === undefined) return undefined;
  const { name, rank, size, localSize, known } = found;
  const names = new Set([rank, size, ...known]);
  const said = [...names].flatMap((one) => value(one) === undefined ? [] : [`${one}=${value(one)}`]);
  const count = (text: string | undefined): number | undefined =>
    text !== undefined && /^[1-9]\d{0,8}$/.test(text) ? Number(text) : undefined;
  return { name, said: said.slice(0, 2).join(", "), size: count(value(size)), localSize: count(value(localSize)) };
}

/** True if srun set a launcher's variables: their numbers equal SLURM's for the task. */
function isOfSlurm({ rank, size }: ForeignLauncher, value: (name: EnvName) => string | undefined): boolean {
  const space = value("PMIX_NAMESPACE");
  if (rank === "PMIX_RANK" && space !== undefined && !space.startsWith("slurm")) return false;
  const tasks = value("SLURM_STEP_NUM_TASKS") ?? value("SLURM_NTASKS");
  return value("SLURM_STEP_NODELIST") !== undefined && value(rank) !== undefined &&
    value(rank) === value("SLURM_PROCID") && (size === undefined || (value(size) ?? tasks) === tasks);
}

/** The error of a process that such a launcher started as a rank. */
export function foreignRankError({ name, said, size, localSize }: EnclosingLauncher): UnsupportedError {
  const hosts = size !== undefined && localSize !== undefined ? Math.ceil(size / localSize) : 1;
  const perHost = hosts > 1 ? localSize : size;
  const several = hosts > 1 ? `--nnodes ${hosts} --node-rank <number> --master-addr <first host> ` : "";
  const command = `npx fullyshard run ${several}--nproc-per-node ${perHost ?? "<ranks>"} ${scriptCommand()}`;
  return new UnsupportedError(
    `Cannot join the ranks of ${name} (${said}), as each would train a whole model of its own: start them by ` +
      `'${command}'${hosts > 1 ? " on each host" : ""} without that launcher, or set FULLYSHARD_LAUNCHER=none to ` +
      "train alone in each process",
  );
}
