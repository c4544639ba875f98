/**
 * Hosts out of network namespaces on one bridge, and launchers' command lines over them, with a stand-in for ssh. Needs root.
 *
 * @module
 */
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { shellWord } from "../../src/runtime/shell_word.ts";
import { byShell, type MpiLauncher } from "../../tests/support/mpi_world.ts";

const BRIDGE = "fullyshard";
/** Port on the first host at which ranks meet that no launcher of MPI starts. */
const PORT = 29_501;
const script = (name: string): string => fileURLToPath(new URL(name, import.meta.url));

/** Hosts that exist until they are disposed. */
export interface Hosts extends Disposable {
  /** Addresses, host 1 first. */
  readonly addresses: readonly string[];
  /** Cuts a host off, or joins it again. */
  cut(host: number, isCut: boolean): void;
}

/** Runs a command; returns what it said if it failed. */
function attempt(command: string): string | undefined {
  const { status, stderr, error } = spawnSync("sh", ["-c", command], { encoding: "utf8" });
  return status === 0 ? undefined : `${command}: ${error?.message ?? stderr.trim()}`;
}

function must(command: string): void {
  const problem = attempt(command);
  if (problem !== undefined) throw new Error(problem);
}

/** Reason why this machine cannot make hosts; undefined if it can. */
export function hostsObstacle(): string | undefined {
  const problem = attempt("ip netns add fullyshard-try && ip netns del fullyshard-try") ??
    attempt("unshare --uts --ipc --mount --pid --fork --kill-child true");
  return problem === undefined ? undefined : `needs network namespaces (${problem.slice(0, 120)})`;
}

/** Makes hosts. @param rate of each host's link, such as `1gbit`; as fast as the machine unless given */
export function makeHosts(count: number, rate?: string): Hosts {
  const numbers = Array.from({ length: count }, (_, i) => i + 1);
  const remove = (): void => {
    // A namespace's end of a link may outlive it for a while.
    for (const number of numbers) attempt(`ip link del fsv${number}; ip netns del fullyshard${number}`);
    attempt(`ip link del ${BRIDGE}`);
  };
  remove(); // an earlier run may have been killed
  try {
    must(`ip link add ${BRIDGE} type bridge && ip link set ${BRIDGE} up`);
    for (const number of numbers) {
      const inside = `ip -n fullyshard${number}`;
      must(
        [
          `ip netns add fullyshard${number}`,
          `ip link add fsv${number} type veth peer name e0 netns fullyshard${number}`,
          `ip link set fsv${number} master ${BRIDGE} up`,
          `${inside} link set lo up`,
          `${inside} addr add 10.77.0.${number}/24 dev e0`,
          `${inside} link set e0 up`,
        ].join(" && "),
      );
      if (rate !== undefined) {
        must(`ip netns exec fullyshard${number} tc qdisc add dev e0 root tbf rate ${rate} burst 256kb latency 50ms`);
      }
    }
  } catch (error) {
    remove();
    throw error;
  }
  return {
    addresses: numbers.map((number) => `10.77.0.${number}`),
    cut: (host, isCut) => {
      must(`ip link set fsv${host} ${isCut ? "down" : "up"}`);
      // A host that was not found a moment ago counts as absent for some seconds.
      for (const number of isCut ? [] : numbers) must(`ip -n fullyshard${number} neigh flush all`);
    },
    [Symbol.dispose]: remove,
  };
}

/**
 * The command line of a launcher that runs on host 1 and starts a number of ranks on each host.
 *
 * @param inTurn true for ranks 0, 2, … on host 1 and ranks 1, 3, … on host 2
 */
export function onHosts(
  { addresses }: Pick<Hosts, "addresses">,
  launcher: MpiLauncher,
  counts: readonly number[],
  rank: readonly string[],
  inTurn = false,
): readonly string[] {
  const { kind, program, flags } = launcher;
  if (launcher.isAbsent === true) return ["sh", "-c", shellsOn(addresses, launcher, counts, rank, inTurn)];
  const size = counts.reduce((sum, count) => sum + count, 0);
  const names = addresses.map((_, index) => `host${index + 1}`);
  const list = names.map((name, host) => `${name}:${counts[host]}`).join(",");
  // Intel MPI was seen to start as many ranks on a host as it has cores, whatever number the list had.
  const isEven = kind === "Intel MPI" && counts.every((count) => count === counts[0]);
  const each = inTurn ? 1 : isEven ? counts[0] : undefined;
  const prefix = program.replace(/\/bin\/[^/]+$/, "");
  const start = kind === "Open MPI"
    ? [
      ...[program, ...flags, "--prefix", prefix, "--host", list, "--map-by", inTurn ? "node" : "slot"],
      ...["--prtemca", "plm_ssh_agent", script("./rsh.sh"), "--mca", "btl_tcp_if_include", "e0"],
    ]
    : [program, "-launcher", "ssh", "-launcher-exec", script("./rsh.sh"), "-iface", "e0"]
      .concat(each === undefined ? ["-hosts", list] : ["-ppn", String(each), "-hosts", names.join(",")]);
  return onHost(1, [...start, "-n", String(size), ...rank]);
}

/** A script that starts ranks with torchrun's variables on each host, and ends with the code of a host that failed. */
function shellsOn(
  addresses: readonly string[],
  launcher: MpiLauncher,
  counts: readonly number[],
  rank: readonly string[],
  inTurn: boolean,
): string {
  const worldSize = counts.reduce((sum, count) => sum + count, 0);
  const isEven = !inTurn && counts.every((count) => count === counts[0]);
  const [address = ""] = addresses;
  const shape = { worldSize, localWorldSize: isEven ? counts[0] ?? 1 : 1, address, port: PORT };
  let first = 0;
  const lines = counts.map((count, host) => {
    const ranks = Array.from({ length: count }, (_, i) => inTurn ? host + i * counts.length : first + i);
    first += count;
    const command = onHost(host + 1, byShell(launcher, { ...shape, ranks }, rank));
    return `${command.map(shellWord).join(" ")} & pids="$pids $!"`;
  });
  return [...lines, 'code=0; for pid in $pids; do wait "$pid" || code=$?; done; exit $code'].join("\n");
}

/** The command line that runs a command on a host, with a name, processes and shared memory of its own. */
export function onHost(host: number, command: readonly string[]): readonly string[] {
  return [script("./in_host.sh"), String(host), command.map(shellWord).join(" ")];
}

/** The processes of a host. */
export function processesOn(host: number): readonly number[] {
  const { stdout } = spawnSync("ip", ["netns", "pids", `fullyshard${host}`], { encoding: "utf8" });
  return stdout.split("\n").filter((line) => line !== "").map(Number);
}
