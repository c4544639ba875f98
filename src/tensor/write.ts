/**
 * Writing of parameters outside an optimizer: initialization, loading, averaging.
 *
 * @module
 */
import { type DevicePtr, devicePtr } from "../device/device.ts";
import { unwind } from "../unwind.ts";
import type { Parameter } from "./parameter.ts";
import type { FlatShard } from "./parameter_storage.ts";

/** Begins to write flat shards. Collective. Dispose the result in any case, which ends the writing: the other ranks wait for it. */
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
  /**
   * Called after all was written. Without it, disposing drops the values of parameters that had none before, so that no code
   * computes with half of them.
   */
  complete(): void;
}

/**
 * Allocates memory for parameters that have none, and begins to write their flat shards; disposing the result ends it, and must
 * always happen, as other ranks wait. Every rank must call it with the same parameters, and finds its own elements by {@link
 * ownedPtr}. If memory runs out, parameters without values have no memory afterwards.
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
 * Address of the first element of this rank's part of a parameter.
 *
 * @throws {ArgumentError} if it has no values
 */
export function ownedPtr(parameter: Parameter): DevicePtr {
  parameter.requireValues();
  const { flatShard, shard: { offset } } = parameter.storage;
  return devicePtr(flatShard.param + offset * flatShard.dtype.byteLength);
}

/**
 * Calls `write` to overwrite this rank's elements of parameters, whose memory is allocated first if they have none. Every rank
 * must call it with the same parameters. If `write` throws, parameters without values have no memory afterwards.
 *
 * @param write receives each parameter and the address of its `storage.shard.numel` elements, of `storage.flatShard.dtype`
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
