/**
 * What ranks must agree on before a group is split.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { ControlPlane } from "../control_plane.ts";

/** What a rank says of the group that it will be in. */
interface Part {
  readonly ranks: readonly number[];
  readonly note: number;
}

/**
 * Checks that ranks which are to be in one group name the same ranks. Collective over the group that is split.
 *
 * @param ranks the ranks of the new group that this rank will be in
 * @param note something that the members tell each other
 * @returns the members' notes, in their order
 * @throws {CollectiveError} on every rank, if two name different ranks
 */
export function agreeOnSplit(control: ControlPlane, ranks: readonly number[], note: number = 0): readonly number[] {
  const own: Part = { ranks, note };
  const parts = control.exchange(new TextEncoder().encode(JSON.stringify(own)))
    .map((bytes): Part => JSON.parse(new TextDecoder().decode(bytes)));
  for (const [rank, part] of parts.entries()) {
    for (const member of part.ranks) {
      const other = at(parts, member, "part of rank");
      if (other.ranks.join() === part.ranks.join()) continue;
      throw control.failure(
        `rank ${rank} splits into ranks [${part.ranks.join(", ")}], but rank ${member} into [${
          other.ranks.join(", ")
        }]`,
      );
    }
  }
  return ranks.map((rank) => at(parts, rank, "part of rank").note);
}
