/**
 * Runs functions as ranks that a launcher of MPI starts, of any MPI that is found on this machine.
 *
 * @module
 */
import { spawn, spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, realpathSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { shellWord } from "../../src/runtime/shell_word.ts";
import { programOf, RUNTIME } from "./rank_process.ts";
import { freePorts, orderOf, type RankEnd, type RankFunction, type WorldOptions } from "./world.ts";

/** A launcher of MPI on this machine. */
export interface MpiLauncher {
  /** E.g. `Open MPI 5.0.11`. */
  readonly name: string;
  readonly kind: "Open MPI" | "MPICH" | "Intel MPI";
  readonly program: string;
  /** Flags by which it starts more ranks than this machine has cores. */
  readonly flags: readonly string[];
  /** True if ranks are started without it, by torchrun's variables, and take its library alone. */
  readonly isAbsent?: boolean;
}

/** The same libraries of MPI without their launchers, for those whose ranks need none: MPICH and its kin. */
export function withoutLaunchers(launchers: readonly MpiLauncher[]): readonly MpiLauncher[] {
  return launchers.filter(({ kind }) => kind !== "Open MPI").map((launcher) => ({
    ...launcher,
    name: `${launcher.name} without its launcher`,
    isAbsent: true,
  }));
}

/** File of a launcher's library; undefined for a system's own package, which has it where libraries are looked for anyway. */
export function libraryOf({ program }: MpiLauncher): string | undefined {
  const file = `${program.replace(/\/bin\/[^/]+$/, "")}/lib/libmpi.so.12`;
  return existsSync(file) ? file : undefined;
}

/** Ranks of a world that a shell starts on one host. */
export interface ShellRanks {
  readonly ranks: readonly number[];
  readonly worldSize: number;
  /** Ranks that torchrun's variables place on each host. */
  readonly localWorldSize: number;
  /** The place at which they meet. */
  readonly address: string;
  readonly port: number;
}

/** The command line of a shell that starts ranks with torchrun's variables, and ends with the code of one that failed. */
export function byShell(
  launcher: MpiLauncher,
  { ranks, worldSize, localWorldSize, address, port }: ShellRanks,
  rank: readonly string[],
): readonly string[] {
  const library = libraryOf(launcher);
  const variables = {
    ...{ WORLD_SIZE: worldSize, LOCAL_WORLD_SIZE: localWorldSize, MASTER_ADDR: address, MASTER_PORT: port },
    FULLYSHARD_TOKEN: "a secret of the tests",
    ...library === undefined ? {} : { FULLYSHARD_MPI_LIBRARY: library },
  };
  const set = Object.entries(variables).map(([name, value]) => `${name}=${shellWord(String(value))}`).join(" ");
  const starts = ranks.map((number) => {
    const local = `RANK=${number} LOCAL_RANK=${number % localWorldSize}`;
    return `${set} ${local} "$0" "$@" & pids="$pids $!"`;
  });
  const wait = 'code=0; for pid in $pids; do wait "$pid" || code=$?; done; exit $code';
  return ["sh", "-c", [...starts, wait].join("\n"), ...rank];
}

/** Variables that let Open MPI's launchers run in containers, as root. */
const AS_ROOT: Readonly<Record<string, string>> = {
  OMPI_ALLOW_RUN_AS_ROOT: "1",
  OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: "1",
  PRTE_ALLOW_RUN_AS_ROOT: "1",
  PRTE_ALLOW_RUN_AS_ROOT_CONFIRM: "1",
};

/** Reason why there are no launchers, for tests that are skipped. */
export const NO_MPI = "needs mpirun or mpiexec in PATH, or MPI_LAUNCHERS with their paths, separated by ':'";

/** The launchers that MPI_LAUNCHERS names, else those in PATH: one of each version. */
export function mpiLaunchers(): readonly MpiLauncher[] {
  const named = (process.env["MPI_LAUNCHERS"] ?? "").split(":").filter((path) => path !== "");
  const folders = (process.env["PATH"] ?? "").split(":");
  const programs = ["mpirun", "mpiexec", "mpirun.openmpi", "mpirun.mpich", "mpiexec.hydra"];
  const paths = named.length > 0 ? named : folders.flatMap((folder) => programs.map((name) => `${folder}/${name}`));
  const found = new Map<string, MpiLauncher>();
  for (const path of new Set(paths.filter((one) => existsSync(one)).map((one) => realpathSync(one)))) {
    const launcher = launcherAt(path);
    if (launcher !== undefined && !found.has(launcher.name)) found.set(launcher.name, launcher);
  }
  return [...found.values()];
}

function launcherAt(program: string): MpiLauncher | undefined {
  const { stdout } = spawnSync(program, ["--version"], { encoding: "utf8", env: { ...process.env, ...AS_ROOT } });
  const openMpi = /\(Open(?:RTE| MPI)\) (\S+)/.exec(stdout ?? "")?.[1];
  if (openMpi !== undefined) {
    return { name: `Open MPI ${openMpi}`, kind: "Open MPI", program, flags: ["--oversubscribe"] };
  }
  const intel = /Intel\(R\) MPI Library.*?Version (\S+)/.exec(stdout ?? "")?.[1];
  if (intel !== undefined) return { name: `Intel MPI ${intel}`, kind: "Intel MPI", program, flags: [] };
  const mpich = /^\s*Version:\s*(\S+)/m.exec(stdout ?? "")?.[1];
  return mpich === undefined ? undefined : { name: `MPICH ${mpich}`, kind: "MPICH", program, flags: [] };
}

/** The command line that runs a script of this tree under a runtime. */
export function scriptCommandOf(runtime: "bun" | "deno", script: URL, args: readonly string[]): readonly string[] {
  const program = programOf(runtime);
  if (program === undefined) throw new Error(`${runtime} is not installed`);
  return [program, ...runtime === "deno" ? ["run", "-A", "--quiet"] : ["run"], fileURLToPath(script), ...args];
}

/** A launcher's run that has ended. */
export interface LauncherEnd {
  readonly code: number | null;
  readonly output: string;
}

/** Options of {@link runCommand}. */
export interface CommandOptions {
  readonly env?: Readonly<Record<string, string>>;
  readonly timeoutMs?: number;
  /** Ends the command, with what it has started. */
  readonly over?: AbortSignal;
}

/** Runs a command line to its end; kills it, with what it has started, after `timeoutMs`. */
export async function runCommand(
  [program = "", ...args]: readonly string[],
  { env = {}, timeoutMs = 300_000, over }: CommandOptions = {},
): Promise<LauncherEnd> {
  const child = spawn(program, args, {
    env: { ...withoutVariables(process.env), ...AS_ROOT, NO_COLOR: "1", ...env },
    stdio: ["ignore", "pipe", "pipe"],
    detached: true,
  });
  let output = "";
  child.stdout.on("data", (data) => output += String(data));
  child.stderr.on("data", (data) => output += String(data));
  const kill = (): void => {
    if (child.pid !== undefined && child.exitCode === null) process.kill(-child.pid, "SIGKILL");
  };
  over?.addEventListener("abort", kill);
  const timer = setTimeout(() => {
    output += `\nkilled after ${timeoutMs} ms`;
    kill();
  }, timeoutMs);
  const code = await new Promise<number | null>((resolve) => child.on("close", (status) => resolve(status)));
  clearTimeout(timer);
  return { code, output };
}

/** The variables of this process, without those of a launcher that runs the tests. */
function withoutVariables(variables: Readonly<Record<string, string | undefined>>): Record<string, string | undefined> {
  const names = /^(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT|PM[Ix]_.*|PMIX_.*|OMPI_.*)$/i;
  return Object.fromEntries(Object.entries(variables).filter(([name]) => !names.test(name)));
}

/** Options of ranks that a launcher of MPI starts. */
export interface MpiWorldOptions<D> extends WorldOptions<D> {
  readonly runtime?: "bun" | "deno";
  /** Makes the launcher's command line. @default one host */
  readonly command?: (launcher: MpiLauncher, size: number, rank: readonly string[]) => readonly string[];
  readonly timeoutMs?: number;
}

/** The command line that starts ranks on this host. */
export function onThisHost(
  launcher: MpiLauncher,
  size: number,
  rank: readonly string[],
): readonly string[] {
  const { program, flags, isAbsent = false } = launcher;
  if (isAbsent) {
    const ranks = Array.from({ length: size }, (_, number) => number);
    // A world of one host by its variables would be joined by shared memory.
    const shape = { ranks, worldSize: size, localWorldSize: 1 };
    return byShell(launcher, { ...shape, address: "127.0.0.1", port: freePorts() }, rank);
  }
  return [program, ...flags, "-n", String(size), ...rank];
}

/** Runs a function as `size` ranks; resolves with how each ended. */
export async function mpiWorld<D, R>(
  launcher: MpiLauncher,
  size: number,
  run: RankFunction<D, R>,
  options: MpiWorldOptions<D> = {},
): Promise<readonly RankEnd<R>[]> {
  const { runtime = RUNTIME, command = onThisHost, timeoutMs } = options;
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-mpi-`);
  try {
    const order = JSON.stringify(orderOf(run, 0, options));
    const rank = scriptCommandOf(runtime, new URL("./mpi_rank.ts", import.meta.url), [folder, order]);
    const { code, output } = await runCommand(
      command(launcher, size, rank),
      timeoutMs === undefined ? {} : { timeoutMs },
    );
    return Array.from({ length: size }, (_, number): RankEnd<R> => {
      const file = `${folder}/${number}.json`;
      if (!existsSync(file)) {
        return { error: `ended without a result: ${output.slice(0, 3000)} … ${output.slice(-3000)}`, said: [], code };
      }
      return { ...JSON.parse(readFileSync(file, "utf8")), code };
    });
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
