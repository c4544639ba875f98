/**
 * The flags of `fullyshard run`, torchrun's by name and meaning, read into a plan of the run. Flags that only torchrun has are
 * refused with the reason; all arguments after the script belong to the script.
 *
 * @module
 */
import { describeFlags, type Flag, readFlags } from "../config/flags.ts";
import { ConfigError, type ConfigProblem, InternalError, UnsupportedError } from "../errors.ts";
import { clusterFlags, type ClusterLauncher, readClusterLauncher } from "./cluster_launcher.ts";
import { elasticFlags, type ElasticPlan, readElastic, readRange } from "./elastic_plan.ts";

/** Destination of one output stream of a rank. */
export interface StreamPlan {
  /** Shows the rank's lines, with its number before them. */
  readonly shown: boolean;
  /** Keeps the rank's output in a file. */
  readonly kept: boolean;
}

/** Destination of the ranks' traces. */
export interface TracePlan {
  /** Folder in which each rank writes its file. */
  readonly folder: string;
  /** File into which the launcher merges them; undefined leaves that to 'fullyshard trace'. */
  readonly file: string | undefined;
}

/** A run, as its arguments ask for it. */
export interface LaunchPlan {
  /** Script of every rank. */
  readonly script: string;
  /** Arguments of the script, unchanged. */
  readonly scriptArgs: readonly string[];
  /** Ranks on each host, at most. */
  readonly numRanks: number;
  readonly numHosts: number;
  /** Number of this host, from 0. */
  readonly hostRank: number;
  /** Address of the host of rank 0. */
  readonly masterAddr: string;
  /** Port at which the ranks meet; undefined if the launcher chooses one. */
  readonly masterPort: number | undefined;
  /** The cluster's launcher that starts the ranks; undefined if this one does. */
  readonly cluster: ClusterLauncher | undefined;
  /** The rules by which ranks are started again; undefined if the first failure ends the run. */
  readonly elastic: ElasticPlan | undefined;
  /** The places at which launchers of several hosts meet in such a run: the first host's, or each host's. */
  readonly endpoints: readonly { readonly address: string; readonly port: number }[];
  /** Prefix of the run's name. */
  readonly runName: string;
  /** Lets hosts meet without a token. */
  readonly isInsecure: boolean;
  /** The runtime of the ranks; `auto` is the launcher's own. */
  readonly runtime: "bun" | "deno" | "auto";
  /** Arguments for Deno in place of the default permissions. */
  readonly denoArgs: readonly string[] | undefined;
  /** Time that ranks have to stop after a user's signal, e.g. to save a checkpoint. */
  readonly stopGraceSeconds: number;
  /** Destination of traces; undefined for none. */
  readonly trace: TracePlan | undefined;
  /** Reports rank 0's kernels at the end. */
  readonly profile: boolean;
  /** Folder of the log files; undefined if the launcher chooses one when it needs one. */
  readonly logDir: string | undefined;
  /** Destination of a rank's stream. */
  stream(rank: number, stream: "stdout" | "stderr"): StreamPlan;
}

/** The flags of `fullyshard run`. */
export const runFlags: readonly Flag[] = [
  {
    ...one(
      "nproc-per-node",
      "<n|auto|cpu|gpu|min:max>",
      "Ranks to start on this host; auto, cpu: one per core; gpu: one per GPU; 2:4: start 4, continue with at least 2",
      "1",
    ),
    otherNames: ["nproc", "num-processes", "np", "n"],
  },
  one(
    "nnodes",
    "<n|min:max>",
    "Hosts, on each of which this command is given; several need cards, or MPICH or Intel MPI",
    "1",
  ),
  one("node-rank", "<n>", "Number of this host, from 0", "0"),
  one("master-addr", "<address>", "Address of the host of rank 0, which all hosts reach", "127.0.0.1"),
  one(
    "master-port",
    "<port>",
    "Port by which the ranks meet; 0, or none given: the launcher chooses one, for several hosts 29500",
  ),
  {
    name: "standalone",
    takes: "switch",
    description: "One host without external rendezvous; the default",
  },
  ...elasticFlags,
  one("monitor-interval", "<seconds>", "Accepted as torchrun does; ranks are watched without polling"),
  one(
    "stop-grace-seconds",
    "<seconds>",
    "How long ranks may take to stop, and to save, after SIGINT, SIGTERM, SIGHUP or SIGUSR1",
    "30",
  ),
  one(
    "trace",
    "<folder|file.json>",
    "Write a Perfetto trace: a .json file, or a folder to merge by 'fullyshard trace'",
  ),
  {
    name: "profile",
    takes: "switch",
    description: "Print rank 0's time per kernel at the end, beside this machine's peak",
  },
  one("log-dir", "<folder>", "Keep each rank's output here too, in <run>/rank<r>/{stdout,stderr}.log"),
  one("redirects", "<0-3|r:n,...>", "Output to log files only: 1 stdout, 2 stderr, 3 both", "0", "r"),
  one("tee", "<0-3|r:n,...>", "Output to log files and here: 1 stdout, 2 stderr, 3 both", "0", "t"),
  one("local-ranks-filter", "<r,...>", "Show the output of these ranks only"),
  one("rdzv-backend", "<name>", "static or c10d, which are the same here", "static"),
  one(
    "rdzv-endpoint",
    "<host:port,...>",
    "host:port where ranks meet; with --max-restarts list every host, so that a returning host finds the run",
  ),
  one("rdzv-id", "<name>", "Prefix of the run's name"),
  {
    name: "rdzv-insecure",
    takes: "switch",
    description: "Let several hosts meet without FULLYSHARD_TOKEN: any program that reaches the port may join",
  },
  ...clusterFlags,
  one("runtime", "<bun|deno|auto>", "Runtime of the ranks; auto: the one that runs this command", "auto"),
  one("deno-args", "<args>", "Arguments for Deno in place of the default permissions, e.g. --deno-args='-A'"),
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

/** torchrun's default port. */
const TORCHRUN_PORT = 29500;

/** Flags of torchrun that this launcher refuses, with the reason. */
const refused: Readonly<Record<string, string>> = {
  "module": "Python modules are not run; name a script",
  "no-python": "Every script is run by Bun or Deno; see '--runtime'",
  "run-path": "Every script is run as it is; leave the flag out",
  "start-method": "Ranks are always processes of their own",
  "rdzv-conf": "The rendezvous has no settings",
  "signals-to-handle": "SIGINT, SIGTERM, SIGHUP and SIGUSR1 are always forwarded",
  "role": "All ranks have one role",
};

export function runHelp(width: number): string {
  return `Usage: fullyshard run [flags] script.ts [its arguments]\n\n${describeFlags(runFlags, width)}`;
}

/** Flags of `fullyshard run` among a script's arguments, as they are written; those after `--` are the script's own. */
export function misplacedFlags(scriptArgs: readonly string[]): readonly string[] {
  const end = scriptArgs.indexOf("--");
  const typed = scriptArgs.slice(0, end < 0 ? undefined : end).flatMap((text) => /^--[^=]+/.exec(text) ?? []);
  const names = new Set(runFlags.map(({ name }) => `--${name}`));
  return typed.filter((flag) => names.has(flag.replaceAll("_", "-")));
}

/** True if the arguments of `fullyshard run` ask for a rank for each card of this host. */
export function asksForCards(argv: readonly string[]): boolean {
  const { uses } = readFlags(runFlags, argv, { stopAtPositional: true });
  return !uses.has("help") && uses.get("nproc-per-node")?.texts.at(-1) === "gpu";
}

/**
 * Reads the arguments of `fullyshard run`.
 *
 * @param numCores cores of this host, for `--nproc-per-node auto`
 * @param numCards cards of this host, at least 1; needed for `--nproc-per-node gpu` only
 * @returns the plan, or `help` if the help text is asked for
 * @throws {ConfigError} for wrong arguments
 * @throws {UnsupportedError} for abilities that only torchrun has
 */
export function planRun(argv: readonly string[], numCores: number, numCards?: number): LaunchPlan | "help" {
  const { uses, rest, problems: found } = readFlags(runFlags, argv, { stopAtPositional: true });
  if (uses.has("help")) return "help";
  const problems: ConfigProblem[] = [];
  for (const problem of found) {
    const reason = refused[problem.path.replace(/^--?/, "").replaceAll("_", "-")];
    if (reason !== undefined) throw new UnsupportedError(`Cannot take '${problem.path}'. ${reason}`);
    problems.push(problem);
  }
  const text = (name: string): string | undefined => uses.get(name)?.texts.at(-1);
  const expect = (name: string, expected: string, holds: (value: string) => boolean): string | undefined => {
    const value = text(name);
    if (value === undefined || holds(value)) return value;
    problems.push({ path: `--${name}`, expected, got: `'${value}'` });
    return undefined;
  };
  const isInteger = (value: string): boolean => /^\d{1,6}$/.test(value);
  const isPort = (value: string): boolean => isInteger(value) && Number(value) <= 65535;

  const processes = expect(
    "nproc-per-node",
    "a number from 1, auto, cpu or gpu, or a range such as 2:4",
    (value) => ["auto", "cpu", "gpu"].includes(value) || readRange(value) !== undefined,
  ) ?? "1";
  const nodes = expect("nnodes", "a number from 1, or a range such as 1:4", (value) => readRange(value) !== undefined);
  const { fewest: fewestHosts, most: numHosts } = readRange(nodes ?? "1") ?? { fewest: 1, most: 1 };
  const hostRank = Number(
    expect("node-rank", `a number below --nnodes ${numHosts}`, (value) => {
      return isInteger(value) && Number(value) < numHosts;
    }) ?? "0",
  );
  const cluster = readClusterLauncher(uses, problems);
  if (numHosts > 1 && cluster === undefined) checkHosts(text, problems);
  expect("monitor-interval", "a positive number of seconds", (value) => Number(value) > 0);
  const backend = text("rdzv-backend");
  if (backend !== undefined && backend !== "static" && backend !== "c10d") {
    throw new UnsupportedError(`Cannot use the rendezvous '${backend}': expected '--rdzv-backend static' or 'c10d'`);
  }
  const grace = expect("stop-grace-seconds", "a positive number of seconds, at most a day", (value) => {
    return Number(value) > 0 && Number(value) <= 86_400;
  }) ?? "30";
  const places = expect(
    "rdzv-endpoint",
    "host:port with a port from 0 to 65535, or with --max-restarts the endpoint of each host, divided by commas",
    (value) => value.split(",").every((one) => /^.+:\d+$/.test(one) && isPort(portOf(one))),
  )?.split(",") ?? [];
  const [endpoint] = places;
  const port = expect("master-port", "a port from 0 to 65535", isPort) ??
    (endpoint === undefined ? undefined : portOf(endpoint));
  const trace = numHosts > 1 || cluster !== undefined
    ? expect("trace", "a folder, as each host has its own ranks' part of a run", (value) => !/^$|\.json$/.test(value))
    : expect("trace", "a folder, or a file that ends in .json", (value) => value !== "");
  const runtime = expect("runtime", "bun, deno or auto", isRuntime);

  if (processes === "gpu" && numCards === undefined) throw new InternalError("Nobody has counted the cards");
  const range = readRange(processes);
  const numRanks = range !== undefined ? range.most : processes === "gpu" ? numCards ?? NaN : numCores;
  const isRange = cluster === undefined &&
    (fewestHosts < numHosts || (range !== undefined && range.fewest < range.most));
  const elastic = readElastic(text, { hosts: fewestHosts, ranks: range?.fewest ?? numRanks, isRange }, problems);
  if (elastic !== undefined && numHosts > 1 && range !== undefined && range.fewest < range.most) {
    const expected = "one number, as ranks of several hosts come and go with their host";
    problems.push({ path: "--nproc-per-node", expected, got: `'${processes}'` });
  }
  const streams = readStreams(text, numRanks, problems);
  const script = rest[0];
  if (script === undefined && problems.length === 0) {
    const got = "nothing. See 'fullyshard run --help'";
    problems.push({ path: "script", expected: "a script after the flags", got });
  }
  if (script === undefined || problems.length > 0) throw new ConfigError(problems);
  return {
    script,
    scriptArgs: rest.slice(1),
    numRanks,
    numHosts,
    hostRank,
    cluster,
    masterAddr: text("master-addr") ?? (endpoint === undefined ? "127.0.0.1" : hostOf(endpoint)),
    // As in torchrun, port 0 means any free port. Launchers on several hosts cannot agree on one.
    masterPort: Number(port ?? 0) !== 0 ? Number(port) : numHosts > 1 ? TORCHRUN_PORT : undefined,
    elastic,
    endpoints: places.length > 0
      ? places.map((place) => ({ address: hostOf(place), port: Number(portOf(place)) }))
      : [{ address: text("master-addr") ?? "127.0.0.1", port: Number(port ?? 0) || TORCHRUN_PORT }],
    runName: text("rdzv-id") ?? "run",
    isInsecure: text("rdzv-insecure") === "true",
    runtime: runtime !== undefined && isRuntime(runtime) ? runtime : "auto",
    denoArgs: text("deno-args")?.split(/\s+/).filter((part) => part !== ""),
    stopGraceSeconds: Number(grace),
    trace: tracePlan(trace),
    profile: uses.has("profile"),
    logDir: text("log-dir"),
    stream: streams,
  };
}

/** Checks the arguments that several hosts need. */
function checkHosts(text: (name: string) => string | undefined, problems: ConfigProblem[]): void {
  if (text("master-addr") === undefined && text("rdzv-endpoint") === undefined) {
    const expected = "the address of the host with --node-rank 0, the same on all hosts";
    problems.push({ path: "--master-addr", expected, got: "nothing" });
  }
  const port = text("master-port");
  if (port !== undefined && Number(port) === 0) {
    problems.push({
      path: "--master-port",
      expected: "a port that is free on the first host, the same on all",
      got: "'0'",
    });
  }
  if (text("profile") === "true") {
    const expected = "to be left out, or '--trace <folder>', as each host has its own ranks' part of a run";
    problems.push({ path: "--profile", expected, got: "it" });
  }
  if (text("standalone") === "true") {
    problems.push({
      path: "--standalone",
      expected: "to be left out, as --nnodes says that there are several hosts",
      got: "it",
    });
  }
}

function tracePlan(place: string | undefined): TracePlan | undefined {
  if (place === undefined) return undefined;
  return place.endsWith(".json") ? { folder: `${place}.ranks`, file: place } : { folder: place, file: undefined };
}

/** Reads the destination of each stream of each rank. */
function readStreams(
  text: (name: string) => string | undefined,
  numRanks: number,
  problems: ConfigProblem[],
): LaunchPlan["stream"] {
  const redirects = readStreamBits("redirects", text("redirects"), problems);
  const asked = text("tee") ?? (text("log-dir") !== undefined && text("redirects") === undefined ? "3" : undefined);
  const tee = readStreamBits("tee", asked, problems);
  const filter = text("local-ranks-filter")?.split(",");
  for (const rank of filter ?? []) {
    if (!/^\d+$/.test(rank) || Number(rank) >= numRanks) {
      problems.push({ path: "--local-ranks-filter", expected: `ranks from 0 to ${numRanks - 1}`, got: `'${rank}'` });
    }
  }
  const shownRanks = filter === undefined ? undefined : new Set(filter.map(Number));
  return (rank, stream) => {
    const bit = stream === "stdout" ? 1 : 2;
    const redirected = (redirects(rank) & bit) !== 0;
    const teed = (tee(rank) & bit) !== 0;
    return { shown: !(redirected && !teed) && (shownRanks?.has(rank) ?? true), kept: redirected || teed };
  };
}

/** `3` holds for every rank, `0:1,1:3` for the ranks named. */
function readStreamBits(name: string, value: string | undefined, problems: ConfigProblem[]): (rank: number) => number {
  if (value === undefined) return () => 0;
  if (/^[0-3]$/.test(value)) return () => Number(value);
  if (!/^\d+:[0-3](,\d+:[0-3])*$/.test(value)) {
    problems.push({ path: `--${name}`, expected: "0 to 3, or ranks with them such as 0:1,1:3", got: `'${value}'` });
    return () => 0;
  }
  const bits = new Map(
    value.split(",").map((part) => {
      const [rank, bit] = part.split(":");
      return [Number(rank), Number(bit)];
    }),
  );
  return (rank) => bits.get(rank) ?? 0;
}

function one(name: string, placeholder: string, description: string, fallback?: string, short?: string): Flag {
  return {
    name,
    takes: "one",
    placeholder,
    description,
    ...(fallback === undefined ? {} : { default: fallback }),
    ...(short === undefined ? {} : { short }),
  };
}

function hostOf(endpoint: string): string {
  return endpoint.slice(0, endpoint.lastIndexOf(":"));
}

function portOf(endpoint: string): string {
  return endpoint.slice(endpoint.lastIndexOf(":") + 1);
}

function isRuntime(value: string): value is LaunchPlan["runtime"] {
  return value === "bun" || value === "deno" || value === "auto";
}
