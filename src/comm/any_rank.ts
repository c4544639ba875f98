/**
 * Flags that hold on any rank.
 *
 * @module
 */
import type { ProcessGroup } from "./process_group.ts";

/**
 * Whether each of some flags is set on any rank: one exchange for all. Collective: every rank gives as many.
 *
 * @returns the same list on every rank
 */
export function anyRank(group: ProcessGroup, flags: readonly boolean[], label: string): readonly boolean[] {
  if (group.size === 1 || flags.length === 0) return flags;
  const own = Uint8Array.from(flags, Number);
  const all = group.exchange(own, label);
  return flags.map((_, i) => all.some((part) => part[i] === 1));
}
