/**
 * What a sharded module looks like: its units, their sizes, and what padding costs.
 *
 * @module
 */
import { float32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import type { Module } from "../nn/module.ts";
import { shardedModuleOf } from "../fsdp/handle.ts";
import { type DtypeLedger, ledgerOf } from "../parallel/precision.ts";

/** One unit of a sharded module; numbers count elements. */
export interface UnitDescription {
  /** FQN of its module; the class for a root. */
  readonly name: string;
  /** Parameters in the unit. */
  readonly numParameters: number;
  /** Elements of its parameters, over all ranks. */
  readonly numel: number;
  /** Elements that belong to no parameter, over all ranks. */
  readonly padding: number;
  /** Ranks that share it. */
  readonly world: number;
  /** Copies of it that there are, over all ranks. */
  readonly replicas: number;
  /** Bytes of master weights that each rank keeps, padding included. */
  readonly bytesPerRank: number;
  /** What it is kept, computed, reduced and updated in. */
  readonly dtypes: DtypeLedger;
}

/** One line for each ledger of dtypes, with the units that have it. */
export function ledgerLines(units: readonly Pick<UnitDescription, "name" | "dtypes">[]): readonly string[] {
  const textOf = ({ dtypes }: typeof units[number]): string =>
    Object.entries(dtypes).map(([what, dtype]) => `${what} ${dtype}`).join(", ");
  return Array.from(Map.groupBy(units, textOf), ([text, members]) => {
    const [first, last] = [members[0]?.name, members.at(-1)?.name];
    const names = members.length === 1 ? `'${first}'` : `${members.length} units, '${first}' to '${last}'`;
    return `Dtypes of ${names}: ${text}`;
  });
}

/**
 * Describes the units of a sharded module, the root's first.
 *
 * @throws {ArgumentError} if it is not sharded
 * @example
 * ```ts
 * import { describeSharding, fullyShard } from "fullyshard";
 * import { Linear } from "fullyshard/nn";
 * import { openDevice } from "fullyshard/device";
 * import { openProcessGroup } from "fullyshard/comm";
 * const device = await openDevice("cpu");
 * const layer = new Linear(device, 64, 64);
 * fullyShard(layer, { mesh: await openProcessGroup({ device }) });
 * if (describeSharding(layer)[0]?.padding !== 0) throw new Error("both parameters end on a block");
 * ```
 */
export function describeSharding(module: Module): readonly UnitDescription[] {
  const sharded = shardedModuleOf(module);
  if (sharded === undefined) throw new ArgumentError(`Cannot describe ${module.constructor.name}: it is not sharded`);
  return sharded.units().map(({ name, segments, policy }) => {
    const total = (of: (segment: typeof segments[number]) => number): number =>
      segments.reduce((sum, segment) => sum + of(segment), 0);
    const padding = total(({ plan }) => plan.padding);
    const whole = total(({ plan }) => plan.runLength * plan.world);
    return {
      name,
      numParameters: total(({ storages }) => storages.length),
      numel: whole - padding,
      padding,
      world: policy.group.size,
      replicas: policy.all.size / policy.group.size,
      bytesPerRank: total(({ plan }) => plan.runLength * float32.byteLength),
      dtypes: ledgerOf(policy),
    };
  });
}
