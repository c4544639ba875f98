/**
 * Starts the ranks of this host, once or again, and waits for their end.
 *
 * @module
 */
import process from "node:process";
import {
  type LaunchIdentity,
  type RankCommand,
  rankCommand,
  rankVariables,
  type Variables,
} from "../launch/command.ts";
import { StandIn, standInScript } from "../launch/early_end.ts";
import { ELASTIC_STOP_TIMES, type Generation } from "../launch/elastic.ts";
import type { LaunchPlan } from "../launch/plan.ts";
import { RankPool } from "../launch/rank_pool.ts";
import { defaultStopTimes, type LaunchOutcome, supervise } from "../launch/supervisor.ts";
import { makeDirectory, makeTemporaryDirectory, openWritable } from "../runtime/files.ts";
import type { OutputName, StatusTerminal } from "../runtime/terminal.ts";

/** Facts that all starts of a run share. */
export interface RunFacts {
  readonly plan: LaunchPlan;
  readonly command: RankCommand;
  /** The launcher's variables. */
  readonly inherited: Variables;
  readonly screen: StatusTerminal;
  readonly token: string | undefined;
  readonly runId: string;
  readonly numCores: number;
  /** The folder in memory; undefined if the first failure ends the run. */
  readonly memory: string | undefined;
}

/**
 * Starts ranks, and waits for their end.
 *
 * @param stop asks them to end, as after a failure
 * @param onKept takes each step whose state is kept in memory
 */
export type StartRanks = (
  generation: Generation,
  stop?: AbortSignal,
  onKept?: (step: number) => void,
) => Promise<LaunchOutcome>;

/** A function that starts ranks. @param files closes their logs at the end of the run, and ends processes that wait */
export function rankStarter(facts: RunFacts, files: DisposableStack): StartRanks {
  const { plan, command, inherited, screen, token, numCores } = facts;
  let folder: string | undefined;
  const pool = plan.elastic === undefined ? undefined : files.use(new RankPool(command));
  return async (generation, stop, onKept) => {
    const { elastic } = plan;
    const { numRanks, number, place } = generation;
    const { numHosts, hostRank, masterAddr } = place ?? plan;
    // The memory by which ranks of one start meet has the start's name: that of killed ranks must not be met.
    const run = place?.run ?? facts.runId;
    const runId = number === 0 ? run : `${run}-${number}`;
    const shared: LaunchIdentity = {
      ...{ numRanks, numHosts, hostRank, masterAddr, runId, token, numCores },
      masterPort: place?.masterPort ?? plan.masterPort ?? 49152 + Math.floor(Math.random() * 16384),
      isOneMachine: place?.isOneMachine ?? false,
      showsStatus: screen.showsStatus,
      showsColors: screen.hasColors("stderr"),
      columns: process.stdout.columns,
      elastic: elasticOf(facts, generation),
    };
    const firstRank = hostRank * numRanks;
    // The output of a rank is kept byte for byte, in one file for each stream.
    const keep = (rank: number, stream: OutputName): ((bytes: Uint8Array) => void) | undefined => {
      if (!plan.stream(rank, stream).kept) return undefined;
      if (folder === undefined) {
        // Other users have no business in it, and their folders are not in the way.
        folder = plan.logDir ?? makeTemporaryDirectory("fullyshard-");
        if (plan.logDir === undefined) {
          screen.lines("stderr", [`fullyshard: output is kept in ${folder}/${runId}`]);
        }
      }
      const place = `${folder}/${runId}/rank${firstRank + rank}`;
      makeDirectory(place);
      const file = files.use(openWritable(`${place}/${stream}.log`, "create"));
      return (bytes) => file.write(bytes);
    };
    const starts = Array.from({ length: numRanks }, (_, rank) => ({
      rank: firstRank + rank,
      command,
      variables: rankVariables(rank, shared, inherited),
      shown: { stdout: plan.stream(rank, "stdout").shown, stderr: plan.stream(rank, "stderr").shown },
      keep: { stdout: keep(rank, "stdout"), stderr: keep(rank, "stderr") },
    }));
    using standIn = new StandIn(
      numHosts,
      (reason) => rankCommand({ ...plan, scriptArgs: [reason], denoArgs: undefined }, standInScript(), inherited),
      (rank) => starts.find((start) => start.rank === rank)?.variables,
    );
    const times = {
      ...defaultStopTimes,
      ...elastic === undefined ? {} : ELASTIC_STOP_TIMES,
      userGraceMs: plan.stopGraceSeconds * 1000,
    };
    const outcome = await supervise(starts, screen, times, (end) => standIn.tell(end), stop, onKept, pool);
    await standIn.finish();
    return outcome;
  };
}

/** The variables of ranks that may be started again. */
function elasticOf(
  { plan, runId, memory }: RunFacts,
  { restarts, goesOn, cause, place }: Generation,
): LaunchIdentity["elastic"] {
  const { elastic, numRanks, numHosts } = plan;
  if (elastic === undefined || memory === undefined) return undefined;
  const { maxRestarts, redundancyEvery, fewestRanks, fewestHosts } = elastic;
  return {
    ...{ id: place?.run ?? runId, restarts, folder: memory, maxRestarts, redundancyEvery, goesOn, cause },
    hasHosts: numHosts > 1,
    fewestRanks: fewestRanks * fewestHosts,
    mostRanks: numRanks * numHosts,
  };
}
