/**
 * Parameters that only some ranks of an axis keep, as a pipeline's stages do: the other ranks know their names and shapes, and keep no
 * element of them. So every rank lists the same parameters, and norms, initialization and checkpoints go over all of them.
 *
 * @module
 */
import { type Device, NO_PTR } from "../device/device.ts";
import { float32 } from "../dtype.ts";
import type { PlacementAxis } from "./cut.ts";
import { GradientSlot } from "./gradient_slot.ts";
import type { FlatShard, ParameterStorage } from "./parameter_storage.ts";
import type { Shape } from "../shape.ts";

/** The ranks of an axis that keep a parameter, each all of its part. */
export interface Owners {
  /** The axis. */
  readonly axis: PlacementAxis;
  /** Places of these ranks on the axis, ascending. */
  readonly places: readonly number[];
  /** The empty flat shard of all parameters that this rank leaves to others. */
  readonly emptyShard: FlatShard;
}

/** True if this rank keeps a parameter. */
export function isKeptHere(owners: Owners | undefined): boolean {
  return owners === undefined || owners.places.includes(owners.axis.rank);
}

/** True if a norm counts a parameter on this rank: of several owners the first does. */
export function isCountedHere(owners: Owners | undefined): boolean {
  return owners === undefined || owners.places[0] === owners.axis.rank;
}

/** The flat shard of parameters that a rank leaves to others. */
export function emptyShard(device: Device): FlatShard {
  return {
    dtype: float32,
    device,
    length: 0,
    param: NO_PTR,
    grad: NO_PTR,
    beginWrite: () => {},
    endWrite: () => {},
  };
}

/** The storage of a parameter that this rank leaves to others. */
export function absentStorage(globalShape: Shape, flatShard: FlatShard): ParameterStorage {
  let hasValues = false;
  return {
    kind: "absent",
    shard: { shape: globalShape, boxes: [], numel: 0, offset: 0 },
    flatShard,
    sink: new GradientSlot(),
    reducer: undefined,
    normReducer: undefined,
    hasValues: () => hasValues,
    materialize: () => void (hasValues = true),
    vacate: () => void (hasValues = false),
    hasUnreduced: () => false,
    gradient: () => undefined,
    clearGradient: () => {},
  };
}
