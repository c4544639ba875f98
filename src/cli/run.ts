/**
 * `fullyshard run`: plans the run, starts its ranks and reports how it ended. Nothing that a rank needs is loaded here,
 * because every millisecond before the ranks start is added to every run.
 *
 * @module
 */
import { clusterCommand, type ClusterLauncher, runToEnd, shellText, versionOf } from "../launch/cluster_launcher.ts";
import { isRestricted, rankCommand, type Variables } from "../launch/command.ts";
import { describeFailures } from "../launch/failures.ts";
import { asksForCards, type LaunchPlan, misplacedFlags, planRun, runFlags, runHelp } from "../launch/plan.ts";
import { makeMemoryFolder } from "../launch/memory_folder.ts";
import { requireProcesses } from "../launch/process_limit.ts";
import type { LaunchOutcome } from "../launch/supervisor.ts";
import { StatusTerminal, terminal } from "../runtime/terminal.ts";
import type { Flag } from "../config/flags.ts";
import { npmProblem } from "../config/npm_flags.ts";
import { ConfigError, FileError, LibraryNotFoundError, UnsupportedError } from "../errors.ts";
import { inheritedVariables, npmConfiguration, processEnvironment } from "../runtime/env.ts";
import { enclosingLauncher } from "../runtime/rank_environment.ts";
import { makeTemporaryDirectory, pathKind, removePath, requireWritableDirectory } from "../runtime/files.ts";
import { runElastic } from "./run_elastic.ts";
import { rankStarter } from "./start_ranks.ts";
import { coreCount, processId, requirePlatform, requireSharedMemory, workingDirectory } from "../runtime/processes.ts";

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => Promise.resolve(runFlags);

/**
 * Runs a script on several ranks.
 *
 * @param variables further variables of the ranks' environment
 * @returns the exit code
 * @throws {ConfigError} for arguments that are wrong
 * @throws {UnsupportedError} for what this launcher does not do
 */
export async function run(argv: readonly string[], variables: Variables = {}): Promise<number> {
  const npm = npmConfiguration();
  const forgotten = npmProblem(runFlags, npm);
  if (forgotten !== undefined) throw new ConfigError([forgotten]);
  const numCores = coreCount();
  const plan = planRun(argv, numCores, asksForCards(argv) ? await countCards() : undefined);
  if (plan === "help") {
    const out = terminal("stdout");
    out.write(`${runHelp(out.columns())}\n`);
    return 0;
  }
  if (plan.cluster === undefined) requireOneRun(plan);
  if (plan.numRanks * plan.numHosts > 1) requireSharedMemory();
  else requirePlatform();
  const script = plan.script.startsWith("/") ? plan.script : `${workingDirectory()}/${plan.script}`;
  if (pathKind(script) !== "file") {
    throw new ConfigError([{ path: "script", expected: "a file", got: `'${plan.script}', which is none` }]);
  }
  const { trace } = plan;
  if (trace !== undefined) requireWritableDirectory(trace.folder);
  if (trace?.file !== undefined && pathKind(trace.file) === "directory") {
    throw new ConfigError([{ path: "--trace", expected: "a file", got: `'${trace.file}', which is a folder` }]);
  }
  if (plan.cluster !== undefined) return await runByCluster(plan, plan.cluster, script, variables);
  requireProcesses(plan.numRanks);
  using temporary = new DisposableStack();
  const traces = trace?.folder ??
    (plan.profile ? temporary.adopt(makeTemporaryDirectory("fullyshard-"), removePath) : undefined);
  const traced = traces === undefined ? {} : { FULLYSHARD_TRACE: traces };
  // Ranks under Deno may not read npm's variables, and know which flags are theirs.
  const taken = npm === undefined ? {} : { FULLYSHARD_NPM: JSON.stringify(npm) };
  const inherited = { ...inheritedVariables(), ...variables, ...traced, ...taken };
  const command = rankCommand(plan, script, inherited);
  const screen = new StatusTerminal();
  // Two runs on one host must not meet: neither by name nor, where none was asked for, by port.
  const unique = (Date.now() * 1000 + Math.floor(Math.random() * 1000)).toString(36);
  const runId = `${plan.runName}-${processId()}-${unique}`;
  const token = tokenOf(plan, inherited);
  const memory = plan.elastic && makeMemoryFolder(
    "fullyshard_kept-",
    processEnvironment().text("FULLYSHARD_SHM_DIRECTORY"),
    isRestricted(command),
  );
  if (memory?.elsewhere !== undefined && plan.elastic?.redundancyEvery !== undefined) {
    screen.lines("stderr", [`fullyshard: the ranks' state is kept in '${memory.path}': ${memory.elsewhere}`]);
  }
  using files = new DisposableStack();
  const facts = { plan, command, inherited, screen, token, runId, numCores, memory: memory?.path };
  const start = rankStarter(facts, files);
  const tell = ({ failures, stopped }: LaunchOutcome, first = plan.hostRank * plan.numRanks): void => {
    screen.status("");
    const isHere = (rank: number): boolean => rank >= first && rank < first + plan.numRanks;
    screen.lines("stderr", describeFailures(failures, stopped, screen.hasColors("stderr"), isHere));
  };
  const outcome = plan.elastic === undefined || memory === undefined
    ? await start({ number: 0, numRanks: plan.numRanks, restarts: 0, goesOn: false, cause: "" })
    : await runElastic(facts, plan.elastic, memory.path, start, tell);
  tell(outcome);
  const [refused] = misplacedFlags(plan.scriptArgs).filter((flag) =>
    outcome.failures.some(({ record }) => record?.message.includes(`${flag}: `))
  );
  if (refused !== undefined) {
    const place = `'fullyshard run ${refused} … ${plan.script}'`;
    screen.lines("stderr", [`fullyshard: ${refused} belongs to the launcher, before the script: ${place}`]);
  }
  const isProfiled = plan.profile && traces !== undefined && outcome.exitCode === 0;
  const exitCode = isProfiled ? await tellProfile(traces, screen) : outcome.exitCode;
  return trace?.file === undefined ? exitCode : await mergeRanks(trace.folder, trace.file, exitCode, screen);
}

/** Lets a cluster's launcher start the ranks, and gives its exit code. */
async function runByCluster(
  plan: LaunchPlan,
  cluster: ClusterLauncher,
  script: string,
  variables: Variables,
): Promise<number> {
  const traced = plan.trace === undefined ? {} : { FULLYSHARD_TRACE: plan.trace.folder };
  const inherited = { ...inheritedVariables(), ...variables, ...traced };
  const rank = rankCommand(plan, script, inherited);
  const command = clusterCommand(cluster, plan, rank, versionOf(cluster.program, inherited), inherited);
  if (cluster.prints) {
    terminal("stdout").write(`${shellText(command)}\n`);
    return 0;
  }
  terminal("stderr").write(`fullyshard: ${shellText(command)}\n`);
  return await runToEnd(command, inherited);
}

/** Refuses to start a run in each process of another launcher. @throws {UnsupportedError} naming the launcher */
function requireOneRun({ numHosts }: LaunchPlan): void {
  const outer = numHosts > 1 ? undefined : enclosingLauncher();
  if (outer === undefined) return;
  throw new UnsupportedError(
    `Cannot start a run in each process of ${outer.name} (${outer.said}): give 'fullyshard run' once, without that ` +
      "launcher, or on several hosts one process of it on each, with --nnodes, --node-rank and --master-addr; set " +
      "FULLYSHARD_LAUNCHER=none to start a run of its own in each process",
  );
}

/**
 * The secret of a run's ranks. Ranks of one launcher are given a new one; hosts must have agreed on theirs before.
 *
 * @throws {ConfigError} if there are several hosts and none was agreed on
 */
function tokenOf({ numHosts, isInsecure }: LaunchPlan, { FULLYSHARD_TOKEN: given }: Variables): string | undefined {
  if (given !== undefined && given !== "") return given;
  if (numHosts === 1) return crypto.randomUUID();
  if (isInsecure) return undefined;
  const expected =
    "a secret that is the same on all hosts and that nobody else knows, e.g. of 'openssl rand -hex 16'; " +
    "'--rdzv-insecure' lets hosts meet without one";
  throw new ConfigError([{ path: "FULLYSHARD_TOKEN", expected, got: "nothing" }]);
}

/** Tells of a step's kernels, and gives the exit code: a profile that is lacking is no success. */
async function tellProfile(folder: string, screen: StatusTerminal): Promise<number> {
  const { profileLines } = await import("./profile.ts");
  try {
    screen.lines("stderr", await profileLines(folder));
    return 0;
  } catch (error) {
    if (!(error instanceof FileError)) throw error;
    screen.lines("stderr", [`fullyshard: ${error.message}`]);
    return 1;
  }
}

/** The cards of this host that ranks will see, at least one. @throws {UnsupportedError} saying why there is none */
async function countCards(): Promise<number> {
  const { numCards } = await import("../device/registry.ts");
  try {
    return await numCards(processEnvironment());
  } catch (error) {
    if (!(error instanceof LibraryNotFoundError || error instanceof UnsupportedError)) throw error;
    const [reason = ""] = error.message.split("\n");
    throw new UnsupportedError(
      `Cannot start a rank for each card by '--nproc-per-node gpu': ${reason}; or give a number of ranks, or 'cpu'`,
    );
  }
}

/** Makes one file of what the ranks traced, and gives the exit code: a trace that is lacking is no success. */
async function mergeRanks(
  folder: string,
  file: string,
  exitCode: number,
  screen: StatusTerminal,
): Promise<number> {
  const { mergeTraces } = await import("./trace.ts");
  try {
    mergeTraces(folder, file);
    removePath(folder);
    screen.lines("stderr", [`fullyshard: the trace is in '${file}'`]);
    return exitCode;
  } catch (error) {
    if (!(error instanceof FileError)) throw error;
    const kept = pathKind(folder) === "none" ? "" : `; what ranks have left is in '${folder}'`;
    screen.lines("stderr", [`fullyshard: ${error.message}${kept}`]);
    return exitCode === 0 ? 1 : exitCode;
  }
}
