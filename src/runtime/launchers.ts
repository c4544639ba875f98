/**
 * Launchers other than torchrun and SLURM: those of MPI, whose ranks MPI joins, and others, whose ranks are refused, as each would
 * train the full model alone.
 *
 * @module
 */
import { ConfigError, type ConfigProblem, UnsupportedError } from "../errors.ts";
import type { EnvSource } from "./env.ts";
import type { EnvName } from "./variables.ts";
import { scriptCommand } from "./processes.ts";

/** Libraries of MPI by their launchers: Open MPI, or one of MPICH's line, such as Intel's, MVAPICH's and Cray's. */
export type MpiLibrary = "openmpi" | "mpich";

/** Variables by which a launcher marks a process as one of several. */
interface ForeignLauncher {
  readonly name: string;
  readonly rank: EnvName;
  /** Number of all ranks; undefined if the launcher does not give it. */
  readonly size: EnvName | undefined;
  /** Number of ranks on this host, and this rank among them. */
  readonly localSize: EnvName | undefined;
  readonly localRank?: EnvName;
  /** The library of MPI that its ranks open; undefined if it is no launcher of MPI. */
  readonly library?: MpiLibrary;
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
    localRank: "OMPI_COMM_WORLD_LOCAL_RANK",
    library: "openmpi",
    known: ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
  },
  {
    name: "MVAPICH's mpirun",
    rank: "MV2_COMM_WORLD_RANK",
    size: "MV2_COMM_WORLD_SIZE",
    localSize: "MV2_COMM_WORLD_LOCAL_SIZE",
    localRank: "MV2_COMM_WORLD_LOCAL_RANK",
    library: "mpich",
    known: ["MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"],
  },
  {
    name: "MVAPICH's mpirun",
    rank: "MVP_COMM_WORLD_RANK",
    size: "MVP_COMM_WORLD_SIZE",
    localSize: "MVP_COMM_WORLD_LOCAL_SIZE",
    localRank: "MVP_COMM_WORLD_LOCAL_RANK",
    library: "mpich",
    known: ["MVP_COMM_WORLD_RANK", "MVP_COMM_WORLD_SIZE", "MVP_COMM_WORLD_LOCAL_SIZE", "MVP_COMM_WORLD_LOCAL_RANK"],
  },
  {
    name: "mpirun_rsh",
    rank: "MPIRUN_RANK",
    size: "MPIRUN_NPROCS",
    localSize: undefined,
    library: "mpich",
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
    name: "Cray's PALS (aprun, mpiexec)",
    rank: "PALS_RANKID",
    size: "PMI_SIZE",
    localSize: "PALS_LOCAL_SIZE",
    localRank: "PALS_LOCAL_RANKID",
    library: "mpich",
    known: ["PALS_RANKID", "PALS_LOCAL_SIZE", "PALS_LOCAL_RANKID"],
  },
  {
    name: "Cray's aprun",
    rank: "ALPS_APP_PE",
    size: "PMI_SIZE",
    localSize: undefined,
    library: "mpich",
    known: ["ALPS_APP_PE"],
  },
  {
    name: "a launcher that speaks PMI, such as MPICH's or Intel's mpiexec",
    rank: "PMI_RANK",
    size: "PMI_SIZE",
    localSize: "MPI_LOCALNRANKS",
    localRank: "MPI_LOCALRANKID",
    library: "mpich",
    known: ["PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "PMI_ID", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE", "MPI_LOCALRANKID"],
  },
  {
    name: "a launcher that speaks PMIx, such as prterun",
    rank: "PMIX_RANK",
    size: "OMPI_COMM_WORLD_SIZE",
    localSize: undefined,
    library: "openmpi",
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

/** Reads a variable; undefined if it is not set or empty. */
type ReadValue = (name: EnvName | undefined) => string | undefined;

function valuesOf(source: EnvSource): ReadValue {
  return (name) => {
    const text = name === undefined ? undefined : source(name)?.trim();
    return text === "" ? undefined : text;
  };
}

/** The launcher that started this process as one of several, by its variables. */
function findLauncher(value: ReadValue): ForeignLauncher | undefined {
  return FOREIGN_LAUNCHERS.find((launcher) =>
    launcher.known.some((name) => value(name) !== undefined) && value(launcher.size) !== "1" &&
    !isOfSlurm(launcher, value)
  );
}

/**
 * Finds the launcher, other than torchrun and SLURM, that started this process as one of several.
 *
 * Tasks of SLURM's srun have variables of PMI or PMIx too. They count as srun's own if their numbers are SLURM's.
 *
 * @returns undefined if there is none, or if each launcher found started this process alone
 */
export function foreignLauncher(source: EnvSource): EnclosingLauncher | undefined {
  const value = valuesOf(source);
  const found = findLauncher(value);
  if (found === undefined) return undefined;
  const { name, rank, size, localSize, known } = found;
  const names = new Set([rank, size, ...known]);
  const said = [...names].flatMap((one) => value(one) === undefined ? [] : [`${one}=${value(one)}`]);
  const count = (text: string | undefined): number | undefined =>
    text !== undefined && /^[1-9]\d{0,8}$/.test(text) ? Number(text) : undefined;
  return { name, said: said.slice(0, 2).join(", "), size: count(value(size)), localSize: count(value(localSize)) };
}

/** Library of MPI of the launcher that started this process as one of several; undefined if that is no launcher of MPI. */
export function mpiLibraryOf(source: EnvSource): MpiLibrary | undefined {
  return findLauncher(valuesOf(source))?.library;
}

/** True if a launcher of MPI started this process, also as the only rank. */
export function startedByMpi(source: EnvSource): boolean {
  const value = valuesOf(source);
  return FOREIGN_LAUNCHERS.some(({ library, known }) =>
    library !== undefined && known.some((name) => value(name) !== undefined)
  );
}

/**
 * The variables of a rank that a launcher of MPI started, in torchrun's form.
 *
 * @returns undefined if no such launcher started this process as one of several, or it does not tell their number
 * @throws {ConfigError} if its variables are incomplete, or contradict each other or those of a second launcher
 */
export function mpiVariables(source: EnvSource): Readonly<Partial<Record<EnvName, string>>> | undefined {
  const value = valuesOf(source);
  const found = findLauncher(value);
  // PMIx alone gives no number of ranks.
  if (found?.library === undefined || found.size === undefined || found.rank === "PMIX_RANK") return undefined;
  const problems: ConfigProblem[] = [];
  const integer = (name: EnvName | undefined, isNeeded: boolean): number | undefined => {
    const text = value(name);
    if (name === undefined || (text === undefined && !isNeeded)) return undefined;
    if (text !== undefined && /^\d{1,9}$/.test(text)) return Number(text);
    const got = text === undefined ? "nothing" : `'${text}'`;
    problems.push({ path: name, expected: `a whole number from 0, as ${found.name} sets it`, got });
    return undefined;
  };
  const [rank, size] = [integer(found.rank, true), integer(found.size, true)];
  const isLocal = value(found.localRank) !== undefined || value(found.localSize) !== undefined;
  const [localRank, localSize] = [integer(found.localRank, isLocal), integer(found.localSize, isLocal)];
  const wrong = (path: EnvName | undefined, expected: string, got: string | undefined): void => {
    if (path !== undefined) problems.push({ path, expected, got: got ?? "nothing" });
  };
  if (rank !== undefined && size !== undefined && rank >= size) {
    wrong(found.rank, `below ${found.size} = ${size}`, String(rank));
  }
  for (const other of FOREIGN_LAUNCHERS) {
    const text = value(other.rank);
    if (other === found || rank === undefined || other.library === undefined || text === undefined) continue;
    if (text === String(rank) || value(other.size) === "1" || isOfSlurm(other, value)) continue;
    wrong(other.rank, `${rank}, as ${found.rank} is: unset the variables of the launcher around this one`, text);
  }
  if (problems.length === 0 && localRank !== undefined && localSize !== undefined) {
    if (localRank >= localSize) wrong(found.localRank, `below ${found.localSize} = ${localSize}`, String(localRank));
  }
  if (problems.length > 0) throw new ConfigError(problems);
  // Open MPI 5 numbers the ranks of a host in another order than the world's.
  const local = localSize === undefined || rank === undefined
    ? {}
    : { LOCAL_RANK: String(rank % localSize), LOCAL_WORLD_SIZE: String(localSize) };
  const [address, port] = [source("MASTER_ADDR"), source("MASTER_PORT")];
  return {
    RANK: String(rank),
    WORLD_SIZE: String(size),
    ...local,
    ...address === undefined ? {} : { MASTER_ADDR: address },
    ...port === undefined ? {} : { MASTER_PORT: port },
  };
}

/** True if srun set a launcher's variables: their numbers equal SLURM's for the task. */
function isOfSlurm({ rank, size }: ForeignLauncher, value: ReadValue): boolean {
  const space = value("PMIX_NAMESPACE");
  if (rank === "PMIX_RANK" && space !== undefined && !space.startsWith("slurm")) return false;
  const tasks = value("SLURM_STEP_NUM_TASKS") ?? value("SLURM_NTASKS");
  return value("SLURM_STEP_NODELIST") !== undefined && value(rank) !== undefined &&
    value(rank) === value("SLURM_PROCID") && (size === undefined || (value(size) ?? tasks) === tasks);
}

/** The error of a process that such a launcher started as a rank. @param isOfMpi true for a launcher of MPI that tells too little */
export function foreignRankError(
  { name, said, size, localSize }: EnclosingLauncher,
  isOfMpi: boolean,
): UnsupportedError {
  if (isOfMpi) {
    return new UnsupportedError(
      `Cannot join the ranks of ${name} (${said}), as it does not tell their number: start them by mpirun or mpiexec, or set ` +
        "FULLYSHARD_LAUNCHER=none to train alone in each process",
    );
  }
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
