/**
 * Writing to parameters from outside an optimizer: initialization, loading, averaging.
 *
 * @module
 */
import { type DevicePtr, devicePtr } from "../device/device.ts";
import { float32 } from "../dtype.ts";
import type { Parameter } from "./parameter.ts";

/**
 * Gives memory to parameters that have none and opens their runs, until it is disposed; that comes whatever happens: other
 * ranks wait. Every rank must call it with the same parameters, and finds its way to what it owns by {@link ownedPtr}.
 */
export function openForWriting(parameters: Iterable<Parameter>): Disposable {
  const list = [...parameters];
  for (const parameter of list) parameter.materialize();
  const runs = new Set(list.map(({ storage }) => storage.run));
  for (const run of runs) run.beginWrite();
  return {
    [Symbol.dispose]: () => {
      for (const run of runs) run.endWrite();
    },
  };
}

/**
 * Address of the first element of a parameter that this rank owns.
 *
 * @throws {ArgumentError} if it has no values
 */
export function ownedPtr(parameter: Parameter): DevicePtr {
  parameter.requireValues();
  const { run, runOffset } = parameter.storage;
  return devicePtr(run.param + runOffset * float32.byteLength);
}

/**
 * Lets `write` overwrite this rank's elements of some parameters. A parameter without memory gets some first. Every rank
 * must call it with the same parameters.
 *
 * @param write gets each parameter and the address of its `storage.shard.numel` float32 elements
 */
export function writeParameters(
  parameters: Iterable<Parameter>,
  write: (parameter: Parameter, owned: DevicePtr) => void,
): void {
  const list = [...parameters];
  using _writing = openForWriting(list);
  for (const parameter of list) if (parameter.storage.shard.numel > 0) write(parameter, ownedPtr(parameter));
}
