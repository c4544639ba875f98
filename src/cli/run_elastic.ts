/**
 * Runs whose ranks are started again after a failure, on one host or several.
 *
 * @module
 */
import process from "node:process";
import { superviseElastic } from "../launch/elastic.ts";
import type { ElasticPlan } from "../launch/elastic_plan.ts";
import type { HostStart } from "../launch/hosts/messages.ts";
import type { LaunchOutcome } from "../launch/supervisor.ts";
import { FileError, RendezvousError } from "../errors.ts";
import { REGROUP_MARK } from "../runtime/elastic_folder.ts";
import { openWritable, removeQuietly } from "../runtime/files.ts";
import { exitCodeOf, STOP_SIGNALS } from "../runtime/signals.ts";
import type { RunFacts, StartRanks } from "./start_ranks.ts";

/**
 * Starts ranks until the run ends.
 *
 * @param tell tells of a failure after which ranks are started again
 * @throws {RendezvousError} if this launcher cannot listen for those of other hosts
 */
export async function runElastic(
  { plan, screen, runId, token }: RunFacts,
  elastic: ElasticPlan,
  memory: string,
  start: StartRanks,
  tell: (outcome: LaunchOutcome, firstRank?: number) => void,
): Promise<LaunchOutcome> {
  const say = (text: string): void => void screen.lines("stderr", [`fullyshard: ${text}`]);
  if (plan.numHosts === 1) {
    const save = (kept: string, out: string): Promise<void> => saveKept(kept, out, say);
    return await superviseElastic({
      ...{ plan: elastic, mostRanks: plan.numRanks, folder: memory, terminal: screen, start, tell, save },
    });
  }
  const { superviseHosts } = await import("../launch/hosts/member.ts");
  using cleanup = new DisposableStack();
  cleanup.defer(() => removeQuietly(memory));
  const asked = new AbortController();
  let code: number | undefined;
  for (const signal of STOP_SIGNALS) {
    // Between two starts nothing else listens, and the folder would stay.
    const listener = (): void => {
      code ??= exitCodeOf(signal);
      asked.abort();
    };
    process.on(signal, listener);
    cleanup.defer(() => process.removeListener(signal, listener));
  }
  const mark = `${memory}/${REGROUP_MARK}`;
  let isFirst = true;
  const limits = { fewestHosts: elastic.fewestHosts, mostHosts: plan.numHosts, maxRestarts: elastic.maxRestarts };
  const startHost = async (
    at: HostStart,
    stop: AbortSignal,
    onKept: (step: number) => void,
  ): Promise<LaunchOutcome> => {
    const { hosts, index: hostRank, masterAddr, masterPort, isOneMachine, run, number, restarts, goesOn } = at;
    if (!isFirst || at.why !== "") say(`going on with ${hosts.length} of at most ${plan.numHosts} hosts${why(at.why)}`);
    isFirst = false;
    const place = { run, numHosts: hosts.length, hostRank, masterAddr, masterPort, isOneMachine };
    const outcome = await start(
      { number, numRanks: plan.numRanks, restarts, goesOn, cause: causeOf(at.why), place },
      stop,
      onKept,
    );
    if (outcome.exitCode !== 0) tell(outcome, hostRank * plan.numRanks);
    return outcome;
  };
  try {
    const outcome = await superviseHosts({
      ...{ limits, endpoints: plan.endpoints, nodeRank: plan.hostRank, numRanks: plan.numRanks, run: runId, say },
      token: token ?? "", // with --rdzv-insecure: all hosts prove that they know the empty one
      start: startHost,
      ...{ memory, asked: asked.signal },
      regroup: (isAsked) => isAsked ? openWritable(mark, "create").close() : removeQuietly(mark),
    });
    // Failures are told already.
    return { ...outcome, exitCode: code ?? outcome.exitCode, failures: [], stopped: [] };
  } catch (error) {
    if (!(error instanceof Error && "code" in error)) throw error;
    const port = plan.endpoints[plan.hostRank]?.port;
    throw new RendezvousError(`The launcher cannot listen for others at port ${port}: ${error.message}`);
  }
}

/** The reason of a start, for its ranks: of a restart the leader tells its number only. */
function causeOf(why: string): string {
  return /^restart/.test(why) ? `after a failure (${why})` : why;
}

function why(text: string): string {
  return text === "" ? "" : ` (${text})`;
}

/** Saves the state in memory into the run's output folder. */
async function saveKept(kept: string, out: string, say: (text: string) => void): Promise<void> {
  const { adoptNewest } = await import("../checkpoint/sharded/adopt.ts");
  try {
    const saved = adoptNewest(kept, out);
    if (saved !== undefined) say(`saved the in-memory state as '${saved.path}'`);
  } catch (error) {
    if (!(error instanceof FileError)) throw error;
    say(`could not save the in-memory state: ${error.message}`);
  }
}
