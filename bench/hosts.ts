/**
 * Two hosts, network namespaces whose links have a rate. With one rank each: collectives and optimizer steps over MPI, against PyTorch
 * with gloo over the same links, and against MPI's own collectives. With four ranks each: a step, against ranks that share no memory on
 * their host. Needs root, and an `mpirun` or `mpiexec` in PATH or MPI_LAUNCHERS.
 *
 * @module
 */
import { fileURLToPath } from "node:url";
import { type Hosts, hostsObstacle, makeHosts, onHosts } from "../scripts/clusters/hosts.ts";
import { withoutSharedMemory } from "../scripts/clusters/link_bytes.ts";
import { type MpiLauncher, mpiLaunchers, NO_MPI } from "../tests/support/mpi_world.ts";
import type { Outcome } from "./figures.ts";
import { rank, ROOT, runProgram } from "./process.ts";
import { modelOfCase } from "./ranks/models.ts";
import { type BenchSetting, outcomeOf, type Side, type Subject } from "./subject.ts";

/** Ranks of each host in cases whose names have it. */
const SEVERAL = { text: "-4+4", counts: [4, 4] } as const;
const RATES = ["1gbit", "10gbit"] as const;
const MODELS = ["llama-8m-f32", "llama-110m-f32"] as const;
const COLLECTIVES = ["all-reduce-8B", "reduce-scatter-1MiB", "reduce-scatter-16MiB", "gather-1MiB", "gather-16MiB"];
const AS_ROOT = {
  OMPI_ALLOW_RUN_AS_ROOT: "1",
  OMPI_ALLOW_RUN_AS_ROOT_CONFIRM: "1",
  PRTE_ALLOW_RUN_AS_ROOT: "1",
  PRTE_ALLOW_RUN_AS_ROOT_CONFIRM: "1",
};

/** A case's name without its rate, and the rate. */
function partsOf(name: string): readonly [what: string, rate: string] {
  const [, what, rate] = /^(.*)-(\d+gbit)$/.exec(name) ?? [];
  if (what === undefined || rate === undefined) throw new Error(`no case '${name}'`);
  return [what, rate];
}

const isStep = (what: string): boolean => what.startsWith("llama");

/** A side whose ranks run on hosts; what it prints is of the case without its rate. */
function onTwoHosts(
  run: (setting: BenchSetting, what: string, hosts: Hosts, launcher: MpiLauncher) => Promise<string>,
): Side {
  return async (setting, names) => {
    const found = new Map<string, Outcome>();
    const [launcher] = mpiLaunchers();
    if (launcher === undefined) throw new Error(NO_MPI);
    const obstacle = hostsObstacle();
    if (obstacle !== undefined) throw new Error(obstacle);
    for (const name of names) {
      const [what, rate] = partsOf(name);
      using hosts = makeHosts(2, rate);
      found.set(name, outcomeOf(await run(setting, what, hosts, launcher), what));
    }
    return found;
  };
}

/** Starts a program on both hosts by the launcher. */
async function byMpi(
  hosts: Hosts,
  launcher: MpiLauncher,
  command: readonly string[],
  variables: Readonly<Record<string, string>> = {},
): Promise<string> {
  const counts = command.some((word) => word.includes(SEVERAL.text)) ? SEVERAL.counts : [1, 1];
  const [program = "", ...args] = onHosts(hosts, launcher, counts, command);
  return (await runProgram(program, args, { ...AS_ROOT, ...variables })).output;
}

/** Starts PyTorch's ranks, each on its host. */
async function byTorch(hosts: Hosts, command: readonly string[]): Promise<string> {
  const inHost = fileURLToPath(new URL("../scripts/clusters/in_host.sh", import.meta.url));
  const runs = hosts.addresses.map((_, index) => {
    const variables = {
      RANK: index,
      WORLD_SIZE: 2,
      LOCAL_RANK: 0,
      MASTER_ADDR: hosts.addresses[0],
      MASTER_PORT: 29_511,
    };
    const set = Object.entries({ ...variables, GLOO_SOCKET_IFNAME: "e0", OMP_NUM_THREADS: 1 });
    const line = ["env", ...set.map(([name, value]) => `${name}=${value}`), ...command].map((word) => `'${word}'`);
    return runProgram(inHost, [String(index + 1), line.join(" ")]);
  });
  return (await Promise.all(runs)).map(({ output }) => output).join("\n");
}

function commandOf(runtime: BenchSetting["runtime"], what: string): ReturnType<typeof rank> {
  return isStep(what)
    ? rank(runtime, `${ROOT}bench/ranks/step.ts`, "--cpu-math", "native", what)
    : rank(runtime, `${ROOT}bench/ranks/collectives.ts`, what);
}

const ours = onTwoHosts(({ runtime }, what, hosts, launcher) => byMpi(hosts, launcher, commandOf(runtime, what)));

/** Milliseconds of a step, microseconds of a collective. */
export const HOSTS: Subject = {
  name: "hosts",
  unit: "",
  higherIsBetter: false,
  isApart: true,
  cases: RATES.flatMap((rate) => [
    {
      name: `llama-8m-short-f32${SEVERAL.text}-${rate}`,
      peers: ["flat"] as const,
      // Of a faster link less can be spared.
      targets: rate === "1gbit" ? { flat: 1.5 } : {},
    },
    ...MODELS.map((model) => ({ name: `${model}-${rate}`, target: 1.5, peers: ["torch", "apart"] as const })),
    ...COLLECTIVES.map((what) => ({ name: `${what}-${rate}`, target: 1, peers: ["torch", "mpi"] as const })),
  ]),
  ours,
  peers: {
    torch: onTwoHosts(({ python }, what, hosts) => {
      const step = ["--mode", "fsdp2", "--case", what];
      return byTorch(
        hosts,
        isStep(what)
          ? [python, `${ROOT}bench/peers/step.py`, ...step, "--model", JSON.stringify(modelOfCase(what))]
          : [python, `${ROOT}bench/peers/collectives.py`, what],
      );
    }),
    mpi: onTwoHosts(({ python }, what, hosts, launcher) =>
      byMpi(hosts, launcher, [python, `${ROOT}bench/peers/collectives_mpi.py`, what], {
        MPI4PY_MPIABI: launcher.kind === "Open MPI" ? "openmpi" : "mpich",
      })
    ),
    flat: onTwoHosts(({ runtime }, what, hosts, launcher) =>
      byMpi(hosts, launcher, withoutSharedMemory(commandOf(runtime, what)))
    ),
    // What a rank computes, on both hosts at once, of which none waits for the other: a step takes so much longer by its link.
    apart: onTwoHosts(async ({ runtime }, what) => {
      const [program, ...args] = commandOf(runtime, what);
      const [first] = await Promise.all([1, 2].map(() => runProgram(program, args)));
      return first?.output ?? "";
    }),
  },
};
