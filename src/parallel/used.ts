/**
 * Which parameters a backward has reached on any rank: what the ranks of a parallelism tell each other at the end of a pass.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import { ArgumentError } from "../errors.ts";
import type { Parameter } from "../tensor/parameter.ts";

/** A parameter's part in a parallelism. */
export interface PassUse {
  readonly parameter: Parameter;
  /** Whether a backward on this rank has reached it since its gradient was cleared. */
  readonly used: boolean;
}

/** The flag of a parameter that is not trained; others have 0 or 1. */
const FROZEN = 2;

/** Parameters that their user was told of. */
const TOLD: WeakSet<Parameter> = new WeakSet();

/**
 * The parameters that at least one rank has used in this pass. Collective, with one exchange: every rank gives the same
 * parameters. The group's first rank reports, once, each parameter that no rank has used.
 *
 * @throws {ArgumentError} if one is frozen on some ranks only, or ranks have taken other numbers of steps
 */
export function usedOnAnyRank<Use extends PassUse>(group: ProcessGroup, uses: readonly Use[]): ReadonlySet<Use> {
  const writes = uses.reduce((sum, { parameter }) => sum + parameter.buffer.version, 0);
  const flagOf = ({ parameter, used }: Use): number => parameter.requiresGrad ? Number(used) : FROZEN;
  const own = new Uint8Array(Uint32Array.of(writes, ...uses.map(flagOf)).buffer);
  const told = group.size === 1 || uses.length === 0 ? [own] : group.exchange(own, "used parameters");
  const rows = told.map((bytes) => new Uint32Array(bytes.slice().buffer));
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
    else if (frozen.length === 0 && !TOLD.has(parameter)) fresh.push(parameter);
  }
  for (const parameter of fresh) TOLD.add(parameter);
  if (group.rank === 0 && fresh.length > 0) {
    const names = fresh.map(({ fqn }) => `'${fqn}'`).join(", ");
    group.report(`No rank has used ${names} in this backward: they have no gradient, and optimizers leave them alone`);
  }
  return used;
}
