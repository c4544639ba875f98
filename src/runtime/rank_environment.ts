/**
 * The number of this process among the ranks of a run, from its launcher's variables.
 *
 * @module
 */
import { ConfigError, type ConfigProblem } from "../errors.ts";
import { type EnvSource, isInteger, processSource } from "./env.ts";
import {
  type EnclosingLauncher,
  foreignLauncher,
  foreignRankError,
  mpiLibraryOf,
  mpiVariables,
  startedByMpi,
} from "./launchers.ts";
import { isSlurmTask, slurmVariables } from "./slurm.ts";
import type { EnvName } from "./variables.ts";

/** Largest number of ranks, as in NCCL and MPI. */
const MAX_RANKS = 2 ** 31 - 1;

/** The launch environment of one rank, in full. */
export interface RankEnvironment {
  /** Launcher whose variables these are; `mpi` is any launcher of MPI, such as mpirun. */
  readonly launcher: "torchrun" | "slurm" | "mpi";
  readonly rank: number;
  readonly worldSize: number;
  readonly localRank: number;
  readonly localWorldSize: number;
  readonly groupRank: number;
  readonly masterAddr: string | undefined;
  readonly masterPort: number | undefined;
  /** Id of the run, if the launcher gives it. */
  readonly runId: string | undefined;
}

/**
 * Reads this process's rank from torchrun's variables or, if none of RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE is set,
 * from those of a launcher of MPI, such as mpirun, or of a task that SLURM's srun started. A rank of another launcher is refused.
 * FULLYSHARD_LAUNCHER selects the variables: `torchrun`, `mpi`, `slurm`, or `none` for a process on its own.
 *
 * Missing LOCAL_* variables are derived: one host is assumed unless LOCAL_WORLD_SIZE differs.
 *
 * @returns undefined if no variable says that there are several ranks: a process on its own
 * @throws {ConfigError} listing all missing, malformed or inconsistent variables
 * @throws {UnsupportedError} if a launcher started this process whose ranks cannot be joined
 */
export function readRankEnvironment(source: EnvSource = processSource): RankEnvironment | undefined {
  const chosen = chosenLauncher(source);
  if (chosen === "none") return undefined;
  const own = chosen === "slurm" || chosen === "mpi" ? undefined : readTorchrun(source, "torchrun");
  if (own !== undefined || chosen === "torchrun") return own;
  const ofMpi = chosen === "slurm" ? undefined : mpiVariables(source);
  if (ofMpi !== undefined) return readTorchrun((name) => ofMpi[name], "mpi");
  const foreign = chosen === "slurm" ? undefined : foreignLauncher(source);
  if (foreign !== undefined) throw foreignRankError(foreign, mpiLibraryOf(source) !== undefined);
  if (chosen === "mpi") return requireAlone(source);
  const variables = slurmVariables(source, chosen === "slurm");
  return variables === undefined ? undefined : readTorchrun((name) => variables[name], "slurm");
}

/**
 * Finds the launcher that started this process as one of several, so that callers can refuse to start a run in each of them.
 * torchrun's variables do not count; nor does any, if FULLYSHARD_LAUNCHER is `none` or `torchrun`.
 *
 * @throws {ConfigError} if FULLYSHARD_LAUNCHER is unknown
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

/** A process that FULLYSHARD_LAUNCHER says a launcher of MPI started, but not as one of several. */
function requireAlone(source: EnvSource): undefined {
  if (startedByMpi(source)) return undefined;
  const expected = "a process that mpirun or mpiexec started";
  throw new ConfigError([{ path: "FULLYSHARD_LAUNCHER", expected, got: "mpi, and no variable of such a launcher" }]);
}

function chosenLauncher(source: EnvSource): RankEnvironment["launcher"] | "none" | undefined {
  const chosen = source("FULLYSHARD_LAUNCHER");
  if (chosen === undefined || chosen === "") return undefined;
  if (chosen === "torchrun" || chosen === "slurm" || chosen === "mpi" || chosen === "none") return chosen;
  throw new ConfigError([{
    path: "FULLYSHARD_LAUNCHER",
    expected: "torchrun, mpi or slurm",
    got: `${JSON.stringify(chosen)}; none is for a process on its own`,
  }]);
}

/** Reads torchrun's variables. */
function readTorchrun(source: EnvSource, launcher: RankEnvironment["launcher"]): RankEnvironment | undefined {
  const problems: ConfigProblem[] = [];
  const integer = (name: EnvName, low: number, high: number): number | undefined => {
    const raw = source(name);
    if (raw === undefined || raw === "") return undefined;
    if (isInteger(raw) && Number(raw) >= low && Number(raw) <= high) return Number(raw);
    const range = high === MAX_RANKS ? `from ${low}` : `from ${low} to ${high}`;
    problems.push({ path: name, expected: `a whole number ${range}`, got: JSON.stringify(raw) });
    return NaN; // malformed: the checks below skip it
  };
  const all = {
    RANK: integer("RANK", 0, MAX_RANKS),
    WORLD_SIZE: integer("WORLD_SIZE", 1, MAX_RANKS),
    LOCAL_RANK: integer("LOCAL_RANK", 0, MAX_RANKS),
    LOCAL_WORLD_SIZE: integer("LOCAL_WORLD_SIZE", 1, MAX_RANKS),
  };
  const { RANK: rank, WORLD_SIZE: worldSize, LOCAL_RANK: localRank, LOCAL_WORLD_SIZE: localWorldSize } = all;
  const set = Object.entries(all).filter(([, value]) => value !== undefined).map(([name]) => name);
  if (set.length === 0) return undefined;
  const groupRank = integer("GROUP_RANK", 0, MAX_RANKS);
  const masterPort = integer("MASTER_PORT", 1, 65535);
  const [masterAddr, runId] = [source("MASTER_ADDR"), source("FULLYSHARD_RUN_ID")];

  for (const name of ["RANK", "WORLD_SIZE"] as const) {
    if (all[name] !== undefined) continue;
    problems.push({ path: name, expected: `to be set, as ${set.join(", ")} is`, got: "nothing" });
  }
  const below = (small: keyof typeof all, large: keyof typeof all, orEqual: boolean): void => {
    // Missing or malformed values are NaN, for which both comparisons are false.
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
    launcher,
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
