/**
 * Parameters that a backward has reached on some rank: at the end of a pass, the ranks of a parallelism exchange which they are.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import { ArgumentError } from "../errors.ts";
import type { Parameter } from "../tensor/parameter.ts";

/** A parameter, and whether this rank used it. */
export interface PassUse {
  readonly parameter: Parameter;
  /** A backward on this rank has reached the parameter since its gradient was cleared. */
  readonly used: boolean;
}

/** The flag of a parameter that requires no gradient; other flags are 0, not used, and 1, used. */
const FROZEN = 2;

/** Parameters that were reported as used by no rank. */
const REPORTED: WeakSet<Parameter> = new WeakSet();

/**
 * The parameters that at least one rank has used in this pass. Collective, with one exchange; every rank must give the same
 * parameters. The group's first rank reports each parameter that no rank has used, once.
 *
 * @throws {ArgumentError} if a parameter is frozen on some ranks only, or if ranks have written parameters unequal numbers of times
 */
export function usedOnAnyRank<Use extends PassUse>(group: ProcessGroup, uses: readonly Use[]): ReadonlySet<Use> {
  const writes = uses.reduce((sum, { parameter }) => sum + parameter.buffer.version, 0);
  const flagOf = ({ parameter, used }: Use): number => parameter.requiresGrad ? Number(used) : FROZEN;
  const own = new Uint8Array(Uint32Array.of(writes, ...uses.map(flagOf)).buffer);
  const all = group.size === 1 || uses.length === 0 ? [own] : group.exchange(own, "used parameters");
  const rows = all.map((bytes) => new Uint32Array(bytes.slice().buffer));
  const times = rows.map(([first]) => first);
  if (new Set(times).size > 1) {
    throw new ArgumentError(
      `Ranks have written the parameters of one module ${
        times.join(", ")
      } times, by rank: every step and load must happen on all`,
    );
  }
  const used = new Set<Use>();
  const fresh: Parameter[] = [];
  for (const [i, use] of uses.entries()) {
    const { parameter } = use;
    const flags = rows.map((row) => row[i + 1]);
    const frozen = [...flags.keys()].filter((rank) => flags[rank] === FROZEN);
    if (frozen.length > 0 && frozen.length < flags.length) {
      throw new ArgumentError(
        `'${parameter.fqn}' is frozen on rank ${frozen.join(", ")} only: freeze it on all ranks or none`,
      );
    }
    if (flags.includes(1)) used.add(use);
    else if (frozen.length === 0 && !REPORTED.has(parameter)) fresh.push(parameter);
  }
  for (const parameter of fresh) REPORTED.add(parameter);
  if (group.rank === 0 && fresh.length > 0) {
    const names = fresh.map(({ fqn }) => `'${fqn}'`).join(", ");
    group.report(`No rank has used ${names} in this backward: they have no gradient, and optimizers leave them alone`);
  }
  return used;
}
