/**
 * The timeline of a step as markup: for each rank a lane of gathers, of computation and of reductions.
 *
 * @module
 */
import { type Html, safe } from "./html.ts";
import { table } from "./sections.ts";
import type { Timeline, TimelineRank, TimelineSpan } from "./timeline.ts";

const LANES = ["gather", "compute", "reduce", "host"] as const;
const LANE_HEIGHT = 14;

/** Names of kinds, in the order of the legend. */
const LEGEND: readonly (readonly [TimelineSpan["kind"], string])[] = [
  ["gather", "gathered"],
  ["forward", "forward"],
  ["backward", "backward"],
  ["wait", "waits for a gather"],
  ["reduce", "reduced"],
  ["free", "freed"],
  ["call", "other calls"],
];

/** The timeline of a step of all ranks. */
export function timelineMarkup(timeline: Timeline): Html {
  const { step, duration, ranks, worldSize } = timeline;
  const absent = worldSize - ranks.length;
  const left = ranks.reduce((sum, rank) => sum + rank.left, 0);
  return safe`<p>Step ${step}, ${milliseconds(duration)}, on one clock.${
    absent > 0 ? ` ${absent} of ${worldSize} ranks left no trace.` : ""
  }${left > 0 ? ` The ${left} shortest spans are left out.` : ""}</p>
<ul class="legend">${
    LEGEND.map(([kind, text]) =>
      safe`<li><svg class="swatch" aria-hidden="true"><rect class="${kind}" width="100%" height="100%"/></svg>${text}</li>`
    )
  }</ul>
${ranks.map((rank) => rankMarkup(rank, duration))}
<details><summary>The same as a table</summary>${
    table(
      "Spans of the step",
      ["Span", "Rank", "Lane", "Begins", "Lasts"],
      ranks.flatMap(({ rank, spans }) =>
        spans.map((span) => [
          span.name,
          rank,
          span.track,
          milliseconds(span.begin),
          milliseconds(span.end - span.begin),
        ])
      ),
    )
  }</details>`;
}

function rankMarkup({ rank, spans }: TimelineRank, duration: number): Html {
  const percent = (time: number): string => (100 * time / Math.max(duration, 1)).toFixed(3);
  const rects = spans.map((span) => {
    const lane = LANES.indexOf(span.track);
    const isFree = span.kind === "free";
    const y = lane * LANE_HEIGHT + (isFree ? 8 : 1);
    const height = isFree ? 5 : span.kind === "wait" ? 6 : LANE_HEIGHT - 2;
    // A span of less than a pixel is seen all the same.
    return safe`
      <rect class="${span.kind}" x="${percent(span.begin)}%" y="${y}" width="${
      percent(
        Math.max(span.end - span.begin, duration / 500),
      )
    }%" height="${height}">
        <title>${span.name}: ${milliseconds(span.begin)} + ${milliseconds(span.end - span.begin)}</title>
      </rect>
    `;
  });
  return safe`
    <figure class="rank">
      <figcaption>Rank ${rank}</figcaption>
      <div class="lanes">
        <div class="names" aria-hidden="true">${LANES.map((lane) => safe`<span>${lane}</span>`)}</div>
        <svg class="timeline" height="${LANES.length * LANE_HEIGHT}" role="img"
          aria-label="Timeline of rank ${rank}; the table below has the same">${rects}</svg>
      </div>
    </figure>
  `;
}

function milliseconds(microseconds: number): string {
  return `${(microseconds / 1000).toFixed(microseconds < 1e4 ? 2 : 1)} ms`;
}
