/**
 * Texts that a page holds: its style, its script, and uPlot with its licence. Runtimes and bundlers put them in as texts.
 *
 * @module
 */
import charts from "uplot/dist/uPlot.iife.min.js" with { type: "text" };
import chartStyle from "uplot/dist/uPlot.min.css" with { type: "text" };
import licence from "uplot/LICENSE" with { type: "text" };
import ownStyle from "./page.css" with { type: "text" };
import liveScript from "./live.js" with { type: "text" };
import script from "./page.js" with { type: "text" };

/** Texts that a page holds. */
export interface PageAssets {
  readonly style: string;
  /** uPlot, as a script that sets `uPlot`. */
  readonly charts: string;
  /** The page's own script. */
  readonly script: string;
  /** The further script of a live page. */
  readonly liveScript: string;
  /** uPlot's licence. */
  readonly licence: string;
}

/** Texts that a page holds. */
export const pageAssets: PageAssets = { style: `${chartStyle}\n${ownStyle}`, charts, script, liveScript, licence };
