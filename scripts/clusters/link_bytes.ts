/**
 * Bytes over the link of two hosts: of ranks that share memory on their host, beside ranks that send everything to each other. The
 * results must have the same bits.
 *
 * @module
 */
import { type MpiLauncher, runCommand, scriptCommandOf } from "../../tests/support/mpi_world.ts";
import type { ClusterItem, Layout, RuntimeName } from "./items.ts";

/** Bytes over the link for each call, and what the calls gave. */
export interface LinkBytes {
  readonly gather: number;
  readonly reduceScatter: number;
  readonly digest: string;
}

const RANK: URL = new URL("./link_bytes_rank.ts", import.meta.url);
/** Most bytes beside those of ranks that share nothing. */
const MOST = { gather: 0.3, reduceScatter: 0.6 } as const;

const APART = "export FULLYSHARD_SHM_DIRECTORY=/dev/shm/rank-${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; " +
  'mkdir -p "$FULLYSHARD_SHM_DIRECTORY"; exec "$@"';

/** The command line of a rank that sees no other rank's shared memory, so that each rank counts as a host. */
export function withoutSharedMemory(rank: readonly string[]): readonly string[] {
  return ["sh", "-c", APART, "sh", ...rank];
}

/** Counts the bytes of gathers and of sums. */
export async function linkItems(
  launcher: MpiLauncher,
  runtime: RuntimeName,
  { name: where, size, command }: Layout,
): Promise<readonly ClusterItem[]> {
  const rank = scriptCommandOf(runtime, RANK, []);
  const count = async (line: readonly string[]): Promise<LinkBytes | string> => {
    const { code, output } = await runCommand(command(launcher, size, line));
    const text = output.split("\n").find((one) => one.startsWith("{"));
    if (text === undefined) return `no result, and code ${code}: ${output.slice(-600)}`;
    if (code !== 0) return `its launcher ended with ${code} after ranks had their results: ${output.slice(-600)}`;
    const counted: LinkBytes = JSON.parse(text);
    return counted;
  };
  const shared = await count(rank);
  const apart = await count(withoutSharedMemory(rank));
  return (["gather", "reduceScatter"] as const).map((what): ClusterItem => {
    const name = `${launcher.name}, ${runtime}, ${where}: bytes of a ${what} over the link`;
    if (typeof shared === "string") return { name, status: "fail", reason: shared };
    if (typeof apart === "string") return { name, status: "fail", reason: `without shared memory: ${apart}` };
    const [ours, flat] = [shared[what], apart[what]];
    const reason = `${(ours / 2 ** 20).toFixed(2)} MiB of 4 MiB, ${(ours / flat).toFixed(3)} of ${
      (flat / 2 ** 20).toFixed(2)
    } without shared memory`;
    if (shared.digest !== apart.digest) return { name, status: "fail", reason: `${reason}; other bits` };
    return { name, status: ours <= MOST[what] * flat ? "pass" : "fail", reason };
  });
}
