/**
 * SLURM's variables of a task that `srun` started, in torchrun's form. A batch script and `salloc`'s shell have some of them too,
 * but are not tasks. A step of one task is a process on its own.
 *
 * @module
 */
import { ConfigError, type ConfigProblem } from "../errors.ts";
import type { EnvSource } from "./env.ts";
import type { EnvName } from "./variables.ts";

/** First port and number of ports, below those that systems assign themselves. */
const [FIRST_PORT, PORTS] = [20_000, 10_000];

/**
 * Torchrun's variables of this task.
 *
 * @param isRequired true if it is an error that this is not one of several tasks
 * @returns undefined if it is not
 * @throws {ConfigError} if SLURM's variables do not give this rank, or distribute ranks other than host by host
 */
export function slurmVariables(
  source: EnvSource,
  isRequired: boolean,
): Readonly<Partial<Record<EnvName, string>>> | undefined {
  const nodes = source("SLURM_STEP_NODELIST") ?? "";
  const size = source("SLURM_STEP_NUM_TASKS") ?? source("SLURM_NTASKS");
  const isTask = isSlurmTask(source);
  if (!isTask || size === "1") {
    if (!isRequired || isTask) return undefined;
    const expected = "to be set by srun, as FULLYSHARD_LAUNCHER is slurm";
    throw new ConfigError([{ path: "SLURM_STEP_NODELIST", expected, got: nodes === "" ? "nothing" : nodes }]);
  }
  const problems: ConfigProblem[] = [];
  const integer = (name: EnvName, text: string | undefined = source(name)): number => {
    if (text !== undefined && /^\d{1,9}$/.test(text)) return Number(text);
    problems.push({ path: name, expected: "a whole number from 0", got: text === undefined ? "nothing" : `'${text}'` });
    return NaN;
  };
  integer("SLURM_STEP_NUM_TASKS", size);
  const perNode = source("SLURM_NTASKS_PER_NODE") ?? tasksPerNode(source("SLURM_STEP_TASKS_PER_NODE"));
  const [rank, local, node] = [integer("SLURM_PROCID"), integer("SLURM_LOCALID"), integer("SLURM_NODEID")];
  const perHost = integer("SLURM_NTASKS_PER_NODE", perNode);
  const [job, step] = [integer("SLURM_JOB_ID"), integer("SLURM_STEP_ID")];
  const place = node * perHost + local;
  if (problems.length === 0 && place !== rank) {
    const expected = `rank ${place}, as this is task ${local} of host ${node} with ${perHost} on each: ` +
      "start with 'srun --distribution=block' and as many tasks on each host";
    problems.push({ path: "SLURM_PROCID", expected, got: String(rank) });
  }
  const first = firstHost(nodes);
  if (first === undefined) {
    const got = nodes === "" ? "nothing" : `'${nodes}'`;
    problems.push({ path: "SLURM_STEP_NODELIST", expected: "a list of hosts such as node[01-04]", got });
  }
  if (first === undefined || size === undefined || problems.length > 0) throw new ConfigError(problems);
  return {
    RANK: String(rank),
    WORLD_SIZE: size,
    LOCAL_RANK: String(local),
    LOCAL_WORLD_SIZE: String(perHost),
    GROUP_RANK: String(node),
    MASTER_ADDR: source("MASTER_ADDR") ?? first,
    // Steps of one job may be concurrent, and so may jobs on one host.
    MASTER_PORT: source("MASTER_PORT") ?? String(FIRST_PORT + (job * 31 + step) % PORTS),
    FULLYSHARD_RUN_ID: source("FULLYSHARD_RUN_ID") ?? `slurm-${job}-${step}`,
  };
}

/** True if this process is a task that srun started. Only srun sets SLURM_STEP_NODELIST, and a batch script is always task 0. */
export function isSlurmTask(source: EnvSource): boolean {
  const nodes = source("SLURM_STEP_NODELIST");
  return (nodes !== undefined && nodes !== "") || /[1-9]/.test(source("SLURM_PROCID") ?? "");
}

/** `4(x2)` is 4 on each of two hosts; undefined if hosts have unequal numbers. */
function tasksPerNode(text: string | undefined): string | undefined {
  return /^(\d+)(\(x\d+\))?$/.exec(text ?? "")?.[1];
}

/** The first host of a list such as `node[01-04,07],other`. */
export function firstHost(nodes: string): string | undefined {
  const match = /^([^[\],]+)(\[(\d+)[^\]]*\]([^,[\]]*))?(,|$)/.exec(nodes);
  if (match === null) return undefined;
  const [, prefix = "", , number = "", suffix = ""] = match;
  return `${prefix}${number}${suffix}`;
}
