/**
 * Which parameters a backward has reached on any rank: what the ranks of a parallelism tell each other at the end of a pass.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import type { Parameter } from "../tensor/parameter.ts";

/** A trainable parameter's part in a parallelism. */
export interface PassUse {
  readonly parameter: Parameter;
  /** Whether a backward on this rank has reached it since its gradient was cleared. */
  readonly used: boolean;
}

/** Parameters that their user was told of. */
const TOLD: WeakSet<Parameter> = new WeakSet();

/**
 * Those that some rank has used. One exchange for all, collective: every rank gives the same parameters. Parameters that no
 * rank has used are reported once, by the group's first rank.
 */
export function usedOnAnyRank<Use extends PassUse>(group: ProcessGroup, uses: readonly Use[]): ReadonlySet<Use> {
  const own = Uint8Array.from(uses, ({ used }) => Number(used));
  const all = group.size === 1 || uses.length === 0 ? [own] : group.exchange(own, "used parameters");
  const used = new Set(uses.filter((_, i) => all.some((flags) => flags[i] === 1)));
  const unused = uses.flatMap(({ parameter }, i) => all.some((flags) => flags[i] === 1) ? [] : [parameter]);
  const fresh = unused.filter((parameter) => !TOLD.has(parameter));
  for (const parameter of fresh) TOLD.add(parameter);
  if (group.rank === 0 && fresh.length > 0) {
    const names = fresh.map(({ fqn }) => `'${fqn}'`).join(", ");
    group.report(`No rank has used ${names} in this backward: they have no gradient, and optimizers leave them alone`);
  }
  return used;
}
