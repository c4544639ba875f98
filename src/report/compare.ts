/**
 * The differences between the configurations of runs.
 *
 * @module
 */
import { sameJson } from "../json.ts";
import type { RecordedRun } from "./read_run.ts";

/** A key whose value is not the same in all runs. */
export interface ConfigDifference {
  readonly key: string;
  /** A value for each run; undefined where the run has none, or no record. */
  readonly values: readonly unknown[];
}

/** Keys whose values differ, runs without a record left out; the folders of output always differ, and are not listed. */
export function differencesOf(runs: readonly Pick<RecordedRun, "record">[]): readonly ConfigDifference[] {
  const known = runs.filter(({ record }) => record !== undefined);
  const keys = new Set(known.flatMap(({ record }) => Object.keys(factsOf(record))));
  return [...keys].filter((key) => {
    const [first, ...others] = known.map(({ record }) => factsOf(record)[key]);
    return others.some((value) => !sameJson(first, value));
  }).map((key) => ({ key, values: runs.map(({ record }) => factsOf(record)[key]) }));
}

/** Settings, and the facts of the run that change numbers or speed. */
function factsOf(record: RecordedRun["record"]): Readonly<Record<string, unknown>> {
  if (record === undefined) return {};
  const { out: _out, runName: _name, resume: _resume, trace: _trace, ...config } = record.config;
  const { versions: { fullyshard, runtime, runtimeVersion }, world, environment } = record;
  return {
    ...config,
    "number of ranks": world.size,
    "version of fullyshard": fullyshard,
    runtime: `${runtime} ${runtimeVersion}`,
    "device of rank 0": environment.deviceDetail,
  };
}
