/**
 * Writing to parameters from outside an optimizer: initialization, loading, averaging.
 *
 * @module
 */
import { type DevicePtr, devicePtr } from "../device/device.ts";
import { float32 } from "../dtype.ts";
import type { Parameter, ParameterRun } from "./parameter.ts";

/** The runs that hold these parameters, each once. */
export function runsOf(parameters: Iterable<Parameter>): ParameterRun[] {
  const runs = new Set<ParameterRun>();
  for (const parameter of parameters) runs.add(parameter.storage.run);
  return [...runs];
}

/** Address of the first element of a parameter that this rank owns. */
export function ownedPtr(parameter: Parameter): DevicePtr {
  const { run, runOffset } = parameter.storage;
  return devicePtr(run.param + runOffset * float32.byteLength);
}

/**
 * Lets `write` overwrite this rank's elements of some parameters, giving memory to those that have none. Every rank must
 * call it with the same parameters.
 *
 * @param write gets each parameter and the address of its `storage.shard.numel` float32 elements
 */
export function writeParameters(
  parameters: Iterable<Parameter>,
  write: (parameter: Parameter, owned: DevicePtr) => void,
): void {
  const list = [...parameters];
  for (const parameter of list) parameter.materialize();
  const runs = runsOf(list);
  for (const run of runs) run.beginWrite();
  try {
    for (const parameter of list) if (parameter.storage.shard.numel > 0) write(parameter, ownedPtr(parameter));
  } finally {
    for (const run of runs) run.endWrite(); // also after a failure: other ranks wait for it
  }
}

/**
 * Like {@link writeParameters}, for a `write` that awaits, e.g. files, and finds its way to what this rank owns by
 * {@link ownedPtr}. If it fails the writing is closed all the same, so that other ranks do not wait.
 *
 * @throws what `write` throws
 */
export async function writeParametersAsync(parameters: Iterable<Parameter>, write: () => Promise<void>): Promise<void> {
  const list = [...parameters];
  for (const parameter of list) parameter.materialize();
  const runs = runsOf(list);
  for (const run of runs) run.beginWrite();
  try {
    await write();
  } finally {
    for (const run of runs) run.endWrite();
  }
}
