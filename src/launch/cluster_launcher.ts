/**
 * `fullyshard run --launcher mpirun` or `srun`: the command line by which a cluster's own launcher starts the ranks, and its run. Ranks
 * learn from that launcher who they are, and join by its MPI.
 *
 * @module
 */
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import process from "node:process";
import type { Flag, FlagUse } from "../config/flags.ts";
import { type ConfigProblem, UnsupportedError } from "../errors.ts";
import { ENV } from "../runtime/variables.ts";
import { shellWord } from "../runtime/shell_word.ts";
import { exitCodeOf, STOP_SIGNALS, type StopSignal } from "../runtime/signals.ts";
import type { RankCommand, Variables } from "./command.ts";

/** Programs that start ranks, by the name of their file. */
const PROGRAMS = ["mpirun", "mpiexec", "srun"] as const;

/** A cluster's launcher, as the arguments of `fullyshard run` ask for it. */
export interface ClusterLauncher {
  /** Name or path of the program. */
  readonly program: string;
  /** File that lists hosts, for the program to read; undefined if it knows them, such as those of a job. */
  readonly hostfile: string | undefined;
  /** Further arguments of the program. */
  readonly args: readonly string[];
  /** Prints the command line and starts nothing. */
  readonly prints: boolean;
}

/** The flags of runs that a cluster's launcher starts. */
export const clusterFlags: readonly Flag[] = [
  {
    name: "launcher",
    takes: "one",
    placeholder: "<fullyshard|mpirun|mpiexec|srun>",
    description: "Program that starts the ranks, by name or path; all but fullyshard start them on all --nnodes hosts",
    default: "fullyshard",
  },
  { name: "hostfile", takes: "one", placeholder: "<file>", description: "With --launcher mpirun: file of hosts" },
  {
    name: "launcher-args",
    takes: "one",
    placeholder: "<args>",
    description: "With --launcher: further arguments of that program, e.g. --launcher-args='--bind-to none'",
  },
  { name: "print-command", takes: "switch", description: "With --launcher: print the command line and start nothing" },
];

/** The other flags that have a meaning with a cluster's launcher. */
const SHARED_FLAGS = ["nproc-per-node", "nnodes", "runtime", "deno-args", "trace"];

/** Reads the flags. @returns undefined if our own launcher is asked for */
export function readClusterLauncher(
  uses: ReadonlyMap<string, FlagUse>,
  problems: ConfigProblem[],
): ClusterLauncher | undefined {
  const text = (name: string): string | undefined => uses.get(name)?.texts.at(-1);
  const program = text("launcher") ?? "fullyshard";
  if (program === "fullyshard") {
    for (const { name } of clusterFlags) {
      if (name === "launcher" || !uses.has(name)) continue;
      problems.push({ path: `--${name}`, expected: "to be left out, or --launcher mpirun or srun", got: "it" });
    }
    return undefined;
  }
  const name = nameOf(program);
  if (name === undefined) {
    const expected = `fullyshard, or ${PROGRAMS.join(", ")} by name or path`;
    problems.push({ path: "--launcher", expected, got: `'${program}'` });
  }
  const known = [...SHARED_FLAGS, ...clusterFlags.map((flag) => flag.name)];
  for (const other of uses.keys()) {
    if (known.includes(other)) continue;
    const expected = `to be left out with --launcher ${program}, which starts, names and ends ranks in its own way`;
    problems.push({ path: `--${other}`, expected, got: "it" });
  }
  for (const size of ["nproc-per-node", "nnodes"]) {
    const range = text(size);
    if (range?.includes(":") !== true) continue;
    problems.push({ path: `--${size}`, expected: `one number with --launcher ${program}`, got: `'${range}'` });
  }
  const hostfile = text("hostfile");
  if (name === "srun" && hostfile !== undefined) {
    const expected = "to be left out, as srun takes its job's hosts";
    problems.push({ path: "--hostfile", expected, got: `'${hostfile}'` });
  }
  const args = text("launcher-args")?.split(/\s+/).filter((part) => part !== "") ?? [];
  return { program, hostfile, args, prints: uses.has("print-command") };
}

/** The program's name without its folder and an ending, as of mpiexec.hydra. */
function nameOf(program: string): typeof PROGRAMS[number] | undefined {
  const file = program.slice(program.lastIndexOf("/") + 1);
  return PROGRAMS.find((name) => file === name || file.startsWith(`${name}.`));
}

/** Sizes of a run. */
export interface ClusterSizes {
  readonly numHosts: number;
  /** Ranks on each host. */
  readonly numRanks: number;
}

/**
 * The command line.
 *
 * @param rank the command of every rank
 * @param version what the launcher says of itself, by {@link versionOf}
 * @param variables environment variables of this process; the command line of Open MPI names the ones that it is to pass to other hosts
 * @throws {UnsupportedError} if the launcher is none that is known
 */
export function clusterCommand(
  { program, hostfile, args }: Pick<ClusterLauncher, "program" | "hostfile" | "args">,
  { numHosts, numRanks }: ClusterSizes,
  rank: RankCommand,
  version: string,
  variables: Variables,
): RankCommand {
  const start = [...args, rank.program, ...rank.args];
  const count = ["-n", String(numHosts * numRanks)];
  if (nameOf(program) === "srun") {
    const kind = ["pmix", "pmi2"].find((name) => new RegExp(`\\b${name}\\b`).test(version));
    const places = ["--nodes", String(numHosts), "--ntasks-per-node", String(numRanks)];
    return { program, args: [...places, ...kind === undefined ? [] : [`--mpi=${kind}`], ...start] };
  }
  const openMpi = /\(Open(?: MPI|RTE)\) (\d+)/.exec(version)?.[1];
  if (openMpi !== undefined) {
    const hosts = hostfile === undefined ? [] : ["--hostfile", hostfile];
    // Ranks that are left when one is killed name it only if the library lets them live.
    const lives = Number(openMpi) >= 5 ? ["--with-ft", "ulfm"] : [];
    // All other launchers hand their variables on.
    const handed = handedOn(variables).flatMap((name) => ["-x", name]);
    return { program, args: [...count, "--map-by", `ppr:${numRanks}:node`, ...hosts, ...lives, ...handed, ...start] };
  }
  if (/HYDRA|MPICH|Intel\(R\) MPI/i.test(version)) {
    const hosts = hostfile === undefined ? [] : ["-f", hostfile];
    return { program, args: [...count, "-ppn", String(numRanks), ...hosts, ...start] };
  }
  const [said = ""] = version.trim().split("\n");
  throw new UnsupportedError(
    `Cannot write a command for '${program}': expected Open MPI's, MPICH's or Intel MPI's, and '${program} --version' ` +
      `says '${said}'. Start the ranks by it yourself, as in docs/clusters.md`,
  );
}

/** Variables that users set for ranks. Launchers set other ones. */
const OF_USERS = /^(FULLYSHARD|WANDB|MLFLOW|TENSORBOARD|HF)_|^(OMP_NUM_THREADS|LD_LIBRARY_PATH|NO_COLOR)$/;

/** Names of the variables that are set and that ranks on other hosts need. */
function handedOn(variables: Variables): readonly string[] {
  return Object.keys(ENV).filter((name) => variables[name] !== undefined && OF_USERS.test(name));
}

/**
 * What a launcher says of itself: its version, or of srun the kinds of MPI that it starts.
 *
 * @throws {UnsupportedError} if it cannot be run
 */
export function versionOf(program: string, variables: Variables): string {
  const flag = nameOf(program) === "srun" ? "--mpi=list" : "--version";
  const { error, status, stdout, stderr } = spawnSync(program, [flag], { env: { ...variables }, encoding: "utf8" });
  if (error === undefined && status === 0) return `${stdout}\n${stderr}`;
  const [why = ""] = (error?.message ?? (stderr || stdout)).trim().split("\n");
  throw new UnsupportedError(
    `Cannot run '${program} ${flag}': ${why}. Install it or load its module, or give its path by --launcher`,
  );
}

/** A command line as a shell takes it. */
export function shellText({ program, args }: RankCommand): string {
  return [program, ...args].map(shellWord).join(" ");
}

/** Runs a command line to its end, hands signals that stop a run on to it, and gives its exit code. */
export function runToEnd({ program, args }: RankCommand, variables: Variables): Promise<number> {
  let child: ChildProcess | undefined;
  // They listen before the program runs: a signal in between would end this process alone.
  // Deno would take a signal sent by `child.kill` for the cause of the end, whatever the exit code.
  const hand = (signal: StopSignal): void => {
    if (child?.pid !== undefined && child.exitCode === null) process.kill(child.pid, signal);
  };
  const listeners = STOP_SIGNALS.map((signal) => [signal, () => hand(signal)] as const);
  for (const [signal, listener] of listeners) process.on(signal, listener);
  return new Promise<number>((resolve, reject) => {
    child = spawn(program, [...args], { env: { ...variables }, stdio: "inherit" });
    child.once("error", reject);
    child.once("exit", (code, signal) => {
      resolve(code ?? (signal === null ? 1 : exitCodeOf(signal)));
    });
  }).finally(() => {
    for (const [signal, listener] of listeners) process.off(signal, listener);
  });
}
