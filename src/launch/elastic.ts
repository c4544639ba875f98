/**
 * Runs whose ranks are started again after a failure: ends the ranks that are left, and starts new ones that go on from the state
 * in memory, or from the last checkpoint.
 *
 * Note [State that outlives ranks]
 * 1. No training is mended. A rank whose collective has failed may hold memory of any state: it closes all, and trains again on the very
 *   path of a run that is resumed by hand, so it has the same bits. Its process stays where it can (`runtime/places.ts`), as a new one
 *   takes about 0.7 s of processor time; the launcher has a spare one for a lost one's place (`rank_pool.ts`).
 * 2. With `--redundancy 1` ranks write their state each few steps as a checkpoint into a folder of shared memory, which the launcher
 *   made. It belongs to no process, so all ranks of the host may die; and a checkpoint is complete or not there, whatever dies while it
 *   is written. While one is written there are two.
 * 3. The launcher marks in the folder that ranks shall leave at the next step's border. They keep their state there first, so that
 *   no step is taken twice.
 * 4. If the run ends before its last step, by a failure or a signal that may come while no rank can save, the launcher copies the
 *   newest state into the output folder, as a checkpoint.
 * 5. The launcher removes the folder at the end, and the shell of Note [Stopping ranks] if the launcher is killed.
 *
 * @module
 */
import process from "node:process";
import { KEPT_FOLDER, REGROUP_MARK } from "../runtime/elastic_folder.ts";
import { openWritable, removeQuietly } from "../runtime/files.ts";
import { exitCodeOf, STOP_SIGNALS, type StopSignal } from "../runtime/signals.ts";
import type { StatusTerminal } from "../runtime/terminal.ts";
import type { ElasticPlan } from "./elastic_plan.ts";
import { nextWorld, type WorldLimits, type WorldState } from "./next_world.ts";
import type { ElasticWords, LaunchOutcome, StopTimes } from "./supervisor.ts";

/** One start of a run's ranks. */
export interface Generation {
  /** Number of the start, from 0. */
  readonly number: number;
  /** Ranks of this host. */
  readonly numRanks: number;
  /** Failures after which ranks were started again. */
  readonly restarts: number;
  /** True if ranks of an earlier start have taken a step. */
  readonly goesOn: boolean;
  /** The reason of the start, for the ranks; empty for the first. */
  readonly cause: string;
  /** The place of this host among several; undefined for the place that the flags give. */
  readonly place?: GenerationPlace | undefined;
}

/** The place of a host in a start over several hosts. */
export interface GenerationPlace {
  readonly run: string;
  readonly numHosts: number;
  readonly hostRank: number;
  readonly masterAddr: string;
  readonly masterPort: number;
  /** True if all hosts are launchers on one machine, whose ranks meet by its memory. */
  readonly isOneMachine: boolean;
}

/** Times that ranks have to stop after another one has failed: they have nothing to save. */
export const ELASTIC_STOP_TIMES: Pick<StopTimes, "noticeMs" | "graceMs"> = { noticeMs: 1000, graceMs: 200 };

export interface ElasticOptions {
  readonly plan: ElasticPlan;
  /** Ranks at first, and at most. */
  readonly mostRanks: number;
  /** The folder in memory, which this removes. */
  readonly folder: string;
  readonly terminal: StatusTerminal;
  /** Starts ranks, and waits for their end. */
  readonly start: (generation: Generation) => Promise<LaunchOutcome>;
  /** Tells of a failure after which ranks are started again. */
  readonly tell: (outcome: LaunchOutcome) => void;
  /** Saves the state in memory into the run's output folder, at the end of a run that is not finished. */
  readonly save: (kept: string, out: string) => Promise<void>;
}

/** Starts ranks until they end by themselves, by a user's signal, or by a failure after which none are started. */
export async function superviseElastic(options: ElasticOptions): Promise<LaunchOutcome> {
  const { plan, mostRanks, folder, terminal, start, tell, save } = options;
  const limits: WorldLimits = { fewestRanks: plan.fewestRanks, mostRanks, maxRestarts: plan.maxRestarts };
  const say = (text: string): void => void terminal.lines("stderr", [`fullyshard: ${text}`]);
  using cleanup = new DisposableStack();
  let signal: StopSignal | undefined;
  for (const name of STOP_SIGNALS) {
    // Between two starts nothing else listens, and the folder would stay.
    const listener = (): void => void (signal ??= name);
    process.on(name, listener);
    cleanup.defer(() => process.removeListener(name, listener));
  }
  cleanup.defer(() => removeQuietly(folder));
  let state: WorldState = { numRanks: mostRanks, restarts: 0, lastError: undefined };
  let [goesOn, cause] = [false, ""];
  let said: Pick<ElasticWords, "worldSizes" | "out"> = { worldSizes: undefined, out: undefined };
  const end = async (outcome: LaunchOutcome): Promise<LaunchOutcome> => {
    if (outcome.exitCode !== 0 && said.out !== undefined) await save(`${folder}/${KEPT_FOLDER}`, said.out);
    return outcome;
  };
  for (let number = 0;; number++) {
    const timer = rejoin(plan, state.numRanks < mostRanks, folder);
    const outcome = await start({ ...state, number, goesOn, cause });
    clearTimeout(timer);
    removeQuietly(`${folder}/${REGROUP_MARK}`);
    goesOn ||= outcome.words.hasBegun;
    if (outcome.words.out !== undefined) said = outcome.words;
    const words = { ...outcome.words, ...said };
    const next = nextWorld(state, limits, { ...outcome, words });
    if (next.kind === "end") {
      if (next.why !== undefined) say(next.why);
      return await end(outcome);
    }
    tell(outcome);
    say(next.why);
    if (signal !== undefined) return await end({ ...outcome, exitCode: exitCodeOf(signal), signal });
    ({ state, cause } = next);
  }
}

/** Asks ranks to leave at a step's border, when it is time for a lost rank to come back. */
function rejoin(
  { rejoinSeconds }: ElasticPlan,
  hasRoom: boolean,
  folder: string,
): ReturnType<typeof setTimeout> | undefined {
  if (!hasRoom || rejoinSeconds === undefined) return undefined;
  return setTimeout(() => openWritable(`${folder}/${REGROUP_MARK}`, "create").close(), rejoinSeconds * 1000);
}
