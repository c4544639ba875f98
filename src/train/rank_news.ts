/**
 * The values that ranks exchange between steps: signals, wishes to stop or to save, and the end of saves in the background.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import { STOP_SIGNALS, type StopSignal } from "../runtime/signals.ts";

/** Cause of a stop that no signal asks for; empty if nothing asks. `regroup`: the run continues with more ranks. */
export type StopReason = "" | "callback" | "page" | "regroup";

/** Words of the log for each cause, after the number of the last step. */
export const STOP_WORDS: Readonly<Record<StopReason, string>> = {
  "": "",
  callback: ", as a callback asked for",
  page: ", as its live page asked for",
  regroup: ", as ranks come in",
};

/** News of one rank, or of all together. */
export interface RankNews {
  readonly signal: StopSignal | undefined;
  readonly stops: StopReason;
  /** True if a checkpoint is asked for. */
  readonly saves: boolean;
  /** True if no save is under way. */
  readonly isIdle: boolean;
}

/** Exchanges news: the first signal and wish of any rank, the same on all. Collective. */
export function exchangeNews(group: Pick<ProcessGroup, "exchangeText">, own: RankNews): RankNews {
  const news = group.exchangeText(JSON.stringify(own), "stop requests").map((text): RankNews => JSON.parse(text));
  return {
    signal: STOP_SIGNALS.find((one) => news.some((rank) => rank.signal === one)),
    stops: news.find(({ stops }) => stops !== "")?.stops ?? "",
    saves: news.some(({ saves }) => saves),
    isIdle: news.every(({ isIdle }) => isIdle),
  };
}
