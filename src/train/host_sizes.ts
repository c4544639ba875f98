/**
 * The numbers of ranks on hosts, as ranks of MPI find them: its launchers may put unequal numbers on hosts, and number ranks in any
 * order.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import { hostName } from "../runtime/processes.ts";
import type { RankEnvironment } from "../runtime/rank_environment.ts";
import type { Run } from "./run.ts";

/** What a run knows of its hosts; under launchers other than MPI's, what their variables say. Collective. */
export function hostSizes(
  group: Pick<ProcessGroup, "exchangeText">,
  environment: Pick<RankEnvironment, "launcher" | "localWorldSize"> | undefined,
): Partial<Pick<Run, "localWorldSize" | "hasEqualHosts">> {
  if (environment === undefined) return {};
  const { launcher, localWorldSize } = environment;
  if (launcher !== "mpi") return { localWorldSize };
  const own = JSON.stringify([localWorldSize, hostName()]);
  const hosts = group.exchangeText(own, "hosts of ranks");
  const isEqual = hosts.every((host, rank) => host === hosts[rank - rank % localWorldSize]) &&
    hosts.every((host) => host.startsWith(`[${localWorldSize},`));
  return isEqual ? { localWorldSize } : { localWorldSize: 1, hasEqualHosts: false };
}
