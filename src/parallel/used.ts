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
 * Those that some rank has used. One exchange for all, collective: every rank gives the same parameters. Parameters that no
 * rank has used are reported once, by the group's first rank.
 *
 * @throws {ArgumentError} if one is frozen on some ranks only
 */
export function usedOnAnyRank<Use extends PassUse>(group: ProcessGroup, uses: readonly Use[]): ReadonlySet<Use> {
  const own = Uint8Array.from(uses, ({ parameter, used }) => parameter.trainable ? Number(used) : FROZEN);
  const all = group.size === 1 || uses.length === 0 ? [own] : group.exchange(own, "used parameters");
  const frozen = uses.findIndex((_, i) => new Set(all.map((flags) => flags[i] === FROZEN)).size > 1);
  if (frozen >= 0) {
    const ranks = [...all.keys()].filter((rank) => all[rank]?.[frozen] === FROZEN);
    throw new ArgumentError(
      `'${uses[frozen]?.parameter.fqn}' is frozen on rank ${
        ranks.join(", ")
      } and trained on others: freeze it on all or none`,
    );
  }
  const used = new Set(uses.filter((_, i) => all.some((flags) => flags[i] === 1)));
  const unused = uses.filter((use) => use.parameter.trainable && !used.has(use)).map(({ parameter }) => parameter);
  const fresh = unused.filter((parameter) => !TOLD.has(parameter));
  for (const parameter of fresh) TOLD.add(parameter);
  if (group.rank === 0 && fresh.length > 0) {
    const names = fresh.map(({ fqn }) => `'${fqn}'`).join(", ");
    group.report(`No rank has used ${names} in this backward: they have no gradient, and optimizers leave them alone`);
  }
  return used;
}
