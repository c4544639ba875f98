/**
 * The memory of each rank as bars, by owner: now, at the highest moment of a step, and at that of the other strategy, which the ranks
 * have measured.
 *
 * @module
 */
/// <reference lib="dom" />
import { type MemoryTerms, NO_TERMS } from "../../../src/device/allocator.ts";
import { totalOf } from "../../../src/demo/scene.ts";
import { byId, bytesText, legend, made } from "./elements.ts";
import { setText } from "./ranks_view.ts";
import type { PageRank, PageTraining } from "./training.ts";

/** Owners in the order in which they are drawn, each with its color and what it is called. */
const OWNERS: readonly (readonly [keyof MemoryTerms, string])[] = [
  ["parameters", "parameters that it keeps"],
  ["gathered", "gathered units, until they are freed"],
  ["gradients", "gradients of whole units"],
  ["gradient shards", "gradients of its shards"],
  ["optimizer", "optimizer states"],
  ["activations", "activations"],
  ["staging", "data on its way to other ranks"],
];

const classOf = (owner: string): string => `of-${owner.replace(" ", "-")}`;

interface Bar {
  readonly line: HTMLElement;
  readonly parts: ReadonlyMap<keyof MemoryTerms, HTMLElement>;
  readonly text: HTMLElement;
}

interface RankBars {
  readonly now: Bar;
  readonly peak: Bar;
  readonly other: Bar;
}

/** Draws the memory of a training's ranks. */
export class MemoryView {
  readonly #training: PageTraining;
  readonly #bars: readonly RankBars[];
  #scale = 1;

  constructor(training: PageTraining) {
    this.#training = training;
    legend("memory-legend", OWNERS.map(([owner, text]) => [classOf(owner), text] as const));
    const isSharded = training.settings.strategy === "fsdp";
    const [own, other] = isSharded ? ["FSDP", "DDP"] : ["DDP", "FSDP"];
    const cards: HTMLElement[] = [];
    this.#bars = training.ranks.map(({ rank }) => {
      const card = made("section", "memory-card");
      card.setAttribute("aria-label", `Memory of rank ${rank}`);
      const bars = { now: bar(`${own}, now`), peak: bar(`${own}, at most`), other: bar(`${other}, at most`) };
      card.append(made("p", "memory-head", `Rank ${rank}`), bars.now.line, bars.peak.line, bars.other.line);
      cards.push(card);
      return bars;
    });
    byId("memory-view", HTMLDivElement).replaceChildren(...cards);
  }

  draw(): void {
    for (const rank of this.#training.ranks) {
      const seen = [mostOf(rank), rank.other?.peak];
      for (const terms of seen) if (terms !== undefined) this.#scale = Math.max(this.#scale, totalOf(terms));
    }
    for (const [i, bars] of this.#bars.entries()) {
      const rank = this.#training.ranks[i];
      if (rank !== undefined) this.#update(bars, rank);
    }
  }

  #update({ now, peak, other }: RankBars, rank: PageRank): void {
    const isGone = rank.state === "killed" || rank.state === "failed";
    this.#fill(now, isGone ? NO_TERMS : rank.scene?.memory);
    this.#fill(peak, mostOf(rank));
    this.#fill(other, rank.other?.peak);
  }

  #fill({ parts, text }: Bar, terms: MemoryTerms | undefined): void {
    if (terms === undefined) return;
    for (const [owner, part] of parts) part.style.width = `${100 * terms[owner] / this.#scale}%`;
    setText(text, bytesText(totalOf(terms)));
  }
}

/** The highest memory of a rank: in its last step, or at a moment that it has told so far. */
function mostOf({ scene, measured }: PageRank): MemoryTerms | undefined {
  if (measured === undefined || scene === undefined) return scene?.most;
  return totalOf(scene.most) > totalOf(measured.peak) ? scene.most : measured.peak;
}

function bar(label: string): Bar {
  const line = made("div", "memory-line");
  const track = made("span", "memory-bar");
  const parts = new Map(OWNERS.map(([owner]) => [owner, made("span", classOf(owner))] as const));
  track.append(...parts.values());
  const text = made("span", "memory-text", "–");
  line.append(made("span", "memory-name", label), track, text);
  return { line, parts, text };
}
