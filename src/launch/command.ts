/**
 * The command line and the variables of one rank. Under Deno a rank gets only the permissions that the library needs: foreign
 * functions, files, facts of the machine, and the variables that the library declares.
 *
 * @module
 */
import { accessSync, constants } from "node:fs";
import { UnsupportedError } from "../errors.ts";
import { environmentNames } from "../runtime/env.ts";
import { LOOPBACK } from "../runtime/loopback_server.ts";
import { executablePath, runtime } from "../runtime/processes.ts";
import { WANDB_SERVICE } from "../runtime/variables.ts";
import type { ElasticPlan } from "./elastic_plan.ts";
import type { LaunchPlan } from "./plan.ts";

/** Environment variables by name. */
export type Variables = Readonly<Record<string, string | undefined>>;

export interface RankCommand {
  readonly program: string;
  readonly args: readonly string[];
}

/**
 * The command of every rank.
 *
 * @param script absolute path of the script
 * @param variables searched for another runtime than the launcher's own
 * @throws {UnsupportedError} if the requested runtime is not found
 */
export function rankCommand(plan: LaunchPlan, script: string, variables: Variables): RankCommand {
  const own = runtime().name;
  const wanted = plan.runtime === "auto" ? own : plan.runtime;
  if (wanted === "node") throw new UnsupportedError("Cannot run ranks on Node: expected Bun or Deno");
  const program = wanted === own ? executablePath() : findProgram(wanted, variables);
  const runtimeArgs = wanted === "deno" ? ["run", ...plan.denoArgs ?? denoPermissions(variables, plan.scriptArgs)] : [];
  return { program, args: [...runtimeArgs, script, ...plan.scriptArgs] };
}

/** True if a rank runs under Deno without all permissions (without -A). */
export function isRestricted({ args }: RankCommand): boolean {
  return args[0] === "run" && !args.includes("-A") && !args.includes("--allow-all");
}

/**
 * The permissions of a rank under Deno: of the network only the trackers that `variables` name, and for a live page this machine's own
 * address.
 */
export function denoPermissions(variables: Variables, scriptArgs: readonly string[] = []): readonly string[] {
  const hasKey = variables["WANDB_API_KEY"] !== undefined;
  const wandb = hasKey ? variables["WANDB_BASE_URL"] ?? WANDB_SERVICE : "";
  const trackers = [variables["MLFLOW_TRACKING_URI"] ?? "", wandb].flatMap((text) => URL.parse(text)?.host || []);
  const places = [...trackers, ...(scriptArgs.some((text) => /^--live(?:=|$)/.test(text)) ? [LOOPBACK] : [])];
  return [
    "--no-prompt",
    "--allow-ffi",
    "--allow-read",
    "--allow-write",
    `--allow-env=${environmentNames().join(",")}`,
    ...(places.length === 0 ? [] : [`--allow-net=${places.join(",")}`]),
  ];
}

/** Facts that all ranks of a run share. */
export interface LaunchIdentity extends Pick<LaunchPlan, "numRanks" | "numHosts" | "hostRank" | "masterAddr"> {
  /** Port at which the ranks meet. */
  readonly masterPort: number;
  /** True if all hosts are launchers on one machine, so that all ranks are those of one host. @default false */
  readonly isOneMachine?: boolean;
  /** Id of the run on this host, different for every run there. */
  readonly runId: string;
  /** Secret that proves a rank's membership; undefined if hosts meet without one. */
  readonly token: string | undefined;
  readonly numCores: number;
  /** True if the launcher shows a status line. */
  readonly showsStatus: boolean;
  /** True if the launcher's terminal shows colors. */
  readonly showsColors: boolean;
  /** Width of its terminal; undefined without one. */
  readonly columns: number | undefined;
  /** Of a run whose ranks may change. */
  readonly elastic: ElasticIdentity | undefined;
}

/** Facts that all ranks of one start share in a run whose ranks may change. */
export interface ElasticIdentity extends Pick<ElasticPlan, "maxRestarts" | "redundancyEvery"> {
  /** Id of the run, the same for all of its starts. */
  readonly id: string;
  readonly restarts: number;
  /** The folder in memory. */
  readonly folder: string;
  /** The fewest and the most ranks of the run. */
  readonly fewestRanks: number;
  readonly mostRanks: number;
  /** True if the run may have several hosts. */
  readonly hasHosts: boolean;
  /** True if ranks of an earlier start have taken a step. */
  readonly goesOn: boolean;
  /** The reason of this start; empty for the first. */
  readonly cause: string;
}

/** All environment variables of a rank on this host; `inherited` are the launcher's own. */
export function rankVariables(localRank: number, run: LaunchIdentity, inherited: Variables): Variables {
  const rank = run.hostRank * run.numRanks + localRank;
  const worldSize = run.numHosts * run.numRanks;
  return {
    // Ranks share the cores: a native library that took all of them would stop the others.
    OMP_NUM_THREADS: String(Math.max(1, Math.floor(run.numCores / run.numRanks))),
    ...inherited,
    RANK: String(rank),
    LOCAL_RANK: String(run.isOneMachine === true ? rank : localRank),
    WORLD_SIZE: String(worldSize),
    LOCAL_WORLD_SIZE: String(run.isOneMachine === true ? worldSize : run.numRanks),
    GROUP_RANK: String(run.hostRank),
    GROUP_WORLD_SIZE: String(run.numHosts),
    ...elasticVariables(run.elastic),
    MASTER_ADDR: run.masterAddr,
    MASTER_PORT: String(run.masterPort),
    FULLYSHARD_RUN_ID: run.runId,
    ...(run.token === undefined ? { FULLYSHARD_RDZV_INSECURE: "1" } : { FULLYSHARD_TOKEN: run.token }),
    FULLYSHARD_PREFIXED: "1",
    // The user may have named another launcher, for processes that no launcher starts, and its variables are inherited.
    FULLYSHARD_LAUNCHER: "torchrun",
    ...(run.showsStatus ? { FULLYSHARD_STATUS: "1" } : {}),
    // Deno colors its reports on a pipe as well.
    ...(run.showsColors ? { FULLYSHARD_COLOR: "1" } : { NO_COLOR: "1" }),
    ...(run.columns === undefined ? {} : { COLUMNS: String(run.columns) }),
  };
}

/** Variables of a rank whose run may change its ranks: torchrun's, and those that no user sets. */
function elasticVariables(run: ElasticIdentity | undefined): Variables {
  if (run === undefined) return {};
  return {
    TORCHELASTIC_RUN_ID: run.id,
    TORCHELASTIC_RESTART_COUNT: String(run.restarts),
    TORCHELASTIC_MAX_RESTARTS: String(run.maxRestarts),
    FULLYSHARD_ELASTIC_FOLDER: run.folder,
    FULLYSHARD_ELASTIC_RANKS: `${run.fewestRanks}:${run.mostRanks}`,
    ...run.redundancyEvery === undefined ? {} : { FULLYSHARD_ELASTIC_EVERY: String(run.redundancyEvery) },
    ...run.hasHosts ? { FULLYSHARD_ELASTIC_HOSTS: "1" } : {},
    ...run.goesOn ? { FULLYSHARD_ELASTIC_GOES_ON: "1" } : {},
    ...run.cause === "" ? {} : { FULLYSHARD_ELASTIC_CAUSE: run.cause },
  };
}

/** The variables that differ between the places of one process. */
const OF_PLACE = [
  ...["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK"],
  ...["GROUP_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"],
  ...["FULLYSHARD_RUN_ID", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"],
  ...["FULLYSHARD_ELASTIC_GOES_ON", "FULLYSHARD_ELASTIC_CAUSE"],
];

/** The variables that a waiting process gets when it takes a rank's place. Those that the rank does not have are set to nothing. */
export function placeVariables(variables: Variables): Variables {
  return Object.fromEntries(OF_PLACE.map((name) => [name, variables[name] ?? ""]));
}

/** The variables of a process that waits for a place, from those of a rank. */
export function spareVariables(variables: Variables): Variables {
  const common = Object.entries(variables).filter(([name]) => !OF_PLACE.includes(name));
  return { ...Object.fromEntries(common), FULLYSHARD_ELASTIC_SPARE: "1" };
}

function findProgram(name: "bun" | "deno", variables: Variables): string {
  const variable = `FULLYSHARD_${name.toUpperCase()}`;
  const named = variables[variable];
  if (named !== undefined && named !== "") return named;
  const folders = (variables["PATH"] ?? "").split(":").filter((folder) => folder !== "");
  const found = folders.map((folder) => `${folder}/${name}`).find(isExecutable);
  if (found !== undefined) return found;
  throw new UnsupportedError(
    `Cannot find '${name}' on PATH. Install it with 'npm install ${name}', or name its file in ${variable}`,
  );
}

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}
