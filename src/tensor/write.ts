/**
 * Writing to parameters from outside an optimizer: initialization, loading, averaging.
 *
 * @module
 */
import { type DevicePtr, devicePtr } from "../device/device.ts";
import { float32 } from "../dtype.ts";
import { unwind } from "../unwind.ts";
import type { FlatShard, Parameter } from "./parameter.ts";

/** Opens flat shards for writing, until it is disposed; that comes whatever happens, as other ranks wait. Collective. */
export function openFlatShards(shards: Iterable<FlatShard>): Disposable {
  using opened = new DisposableStack();
  for (const shard of shards) {
    shard.beginWrite();
    opened.defer(() => shard.endWrite());
  }
  return opened.move();
}

/** Parameters that are being written, until it is disposed. */
export interface ParameterWriting extends Disposable {
  /** All was written. Without, what had no values before has none at the end, so that nobody computes with a part of them. */
  complete(): void;
}

/**
 * Gives memory to parameters that have none and opens their flat shards, until it is disposed; that comes whatever happens: other
 * ranks wait. Every rank must call it with the same parameters, and finds its way to what it owns by {@link ownedPtr}.
 * Where memory runs out, parameters without values have none afterwards.
 */
export function openForWriting(parameters: Iterable<Parameter>): ParameterWriting {
  const list = [...parameters];
  const fresh = list.filter(({ storage }) => !storage.hasValues());
  let isComplete = false;
  using opened = new DisposableStack();
  opened.defer(() => {
    if (!isComplete) unwind(fresh.map(({ storage }) => () => storage.vacate()));
  });
  for (const parameter of list) parameter.materialize();
  opened.use(openFlatShards(new Set(list.map(({ storage }) => storage.flatShard))));
  const writing = opened.move();
  return { complete: () => void (isComplete = true), [Symbol.dispose]: () => writing.dispose() };
}

/**
 * Address of the first element of a parameter that this rank owns.
 *
 * @throws {ArgumentError} if it has no values
 */
export function ownedPtr(parameter: Parameter): DevicePtr {
  parameter.requireValues();
  const { flatShard, shard: { offset } } = parameter.storage;
  return devicePtr(flatShard.param + offset * float32.byteLength);
}

/**
 * Lets `write` overwrite this rank's elements of some parameters. A parameter without memory gets some first. Every rank
 * must call it with the same parameters. Where `write` throws, parameters without values have none afterwards.
 *
 * @param write gets each parameter and the address of its `storage.shard.numel` float32 elements
 */
export function writeParameters(
  parameters: Iterable<Parameter>,
  write: (parameter: Parameter, owned: DevicePtr) => void,
): void {
  const list = [...parameters];
  using writing = openForWriting(list);
  for (const parameter of list) if (parameter.storage.shard.numel > 0) write(parameter, ownedPtr(parameter));
  writing.complete();
}
