/**
 * The parts of a process group that files need, so that a process on its own can read and write them too.
 *
 * @module
 */
import { FINISHED } from "../../comm/data_plane.ts";
import type { ProcessGroup } from "../../comm/process_group.ts";

/** The ranks that read or write something together. */
export type Ranks = Pick<ProcessGroup, "rank" | "size" | "agree" | "together" | "exchangeText" | "broadcast">;

/** A process on its own. */
export const ALONE: Ranks = {
  rank: 0,
  size: 1,
  agree: (_what, action) => action(),
  together: async (_what, action) => await action(),
  exchangeText: (text) => [text],
  broadcast: () => FINISHED,
};
