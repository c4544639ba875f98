/**
 * The timeline of a step: of each rank a lane for gathers, computation and reductions. While the ranks are held it grows; at full speed
 * it shows the step before.
 *
 * @module
 */
/// <reference lib="dom" />
import { NOT_YET, type RankScene, type SceneSpan } from "../../../src/demo/scene.ts";
import { byId, drawn, legend, made } from "./elements.ts";
import type { PageTraining } from "./training.ts";

const WIDTH = 1000;
const LANE = 9;
const LANES = ["gather", "compute", "reduce"] as const;

/** Milliseconds between two drawings at full speed, which would take time from the ranks. */
const REST_MS = 400;

/** Draws the timelines of a training. */
export class TimelineView {
  readonly #training: PageTraining;
  readonly #pictures: readonly SVGElement[];
  #drawn = 0;

  constructor(training: PageTraining) {
    this.#training = training;
    const isSharded = training.settings.strategy === "fsdp";
    const entries = [
      ["gather", "all-gather"],
      ["forward", "forward"],
      ["backward", "backward"],
      ["reduce", isSharded ? "reduce-scatter" : "all-reduce"],
      ["free", "free"],
      ["update", "optimizer"],
    ] as const;
    const isOfSharded = (activity: string): boolean => ["gather", "free", "update"].includes(activity);
    legend("timeline-legend", entries.filter(([activity]) => isSharded || !isOfSharded(activity)));
    const lines: HTMLElement[] = [];
    this.#pictures = training.ranks.map(({ rank }) => {
      const line = made("div", "lanes");
      const names = made("div", "names");
      names.append(made("span", "", `rank ${rank}`));
      const picture = drawn("svg", {
        viewBox: `0 0 ${WIDTH} ${LANE * LANES.length}`,
        preserveAspectRatio: "none",
        class: "timeline",
        role: "img",
        "aria-label": `Timeline of rank ${rank}: gathers, computation, reductions`,
      });
      line.append(names, picture);
      lines.push(line);
      return picture;
    });
    byId("timeline-view", HTMLDivElement).replaceChildren(...lines);
  }

  /** @param isHeld if the step under way is drawn as it grows */
  draw(isHeld: boolean): void {
    const now = performance.now();
    if (!isHeld && now - this.#drawn < REST_MS && !this.#training.isOver) return;
    this.#drawn = now;
    const scenes = this.#training.ranks.map(({ scene }) => scene);
    const spansOf = (scene: RankScene | undefined): readonly SceneSpan[] => {
      if (scene === undefined) return [];
      return isHeld || scene.lastSpans.length === 0 || this.#training.isOver ? scene.spans : scene.lastSpans;
    };
    const all = scenes.map(spansOf);
    // A killed rank's last step may lie far behind the step of the others, and is then not drawn.
    const seen = all.filter((_, i) => this.#training.ranks[i]?.state !== "killed");
    const drawnSpans = seen.flat().filter((span) => span.begin !== NOT_YET);
    const begin = Math.min(...drawnSpans.map((span) => span.begin));
    const end = Math.max(...drawnSpans.map((span) => span.end ?? span.begin), begin + 1);
    for (const [i, picture] of this.#pictures.entries()) {
      const spans = (all[i] ?? []).filter((span) => span.begin >= begin && span.begin <= end);
      picture.replaceChildren(...spans.map((span) => barOf(span, { begin, end })));
    }
  }
}

function barOf(span: SceneSpan, { begin, end }: { readonly begin: number; readonly end: number }): SVGElement {
  const scale = WIDTH / (end - begin);
  const lane = span.track === "gather" ? 0 : span.track === "reduce" ? 2 : 1;
  const isInner = span.activity === "free";
  const bar = drawn("rect", {
    x: (span.begin - begin) * scale,
    y: lane * LANE + (isInner ? LANE / 2 : 0.5),
    width: Math.max(1, ((span.end ?? end) - span.begin) * scale),
    height: isInner ? LANE / 2 - 0.5 : LANE - 1,
    class: span.activity,
  });
  const title = drawn("title", {});
  title.textContent = span.name;
  bar.append(title);
  return bar;
}
