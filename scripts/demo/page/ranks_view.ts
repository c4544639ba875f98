/**
 * The ranks as pictures: of each unit which parts of parameters, gradients and optimizer states a rank holds, in the colors of the
 * ranks that keep the parts.
 *
 * @module
 */
/// <reference lib="dom" />
import type { HeldPart, Moment, UnitState } from "../../../src/demo/scene.ts";
import { byId, legend, made } from "./elements.ts";
import type { PageRank, PageTraining } from "./training.ts";

const ROWS = ["parameters", "gradients", "optimizer"] as const;

/** Words of a rank's work. */
const WORK: Readonly<Record<Moment["activity"], string>> = {
  gather: "all-gather",
  forward: "forward",
  backward: "backward",
  reduce: "reduce",
  free: "free",
  update: "optimizer",
};

interface UnitView {
  readonly box: HTMLElement;
  readonly rows: Readonly<Record<typeof ROWS[number], HTMLElement>>;
}

interface RankView {
  readonly work: HTMLElement;
  readonly units: ReadonlyMap<string, UnitView>;
  readonly card: HTMLElement;
}

/** A unit's name for people. */
export function shortName(unit: string): string {
  const layer = /layers\.(\d+)$/.exec(unit)?.[1];
  if (layer !== undefined) return `block ${layer}`;
  if (unit.startsWith("gradient bucket")) return "all units"; // of a replicated model, which is so small that it has one bucket
  return unit.includes("embed") ? "embedding" : unit.includes("head") ? "norm, head" : unit;
}

/** A unit's name where there is little room. */
function labelOf(unit: string): string {
  return unit.includes("embed") ? "embed" : unit.includes("head") ? "head" : shortName(unit);
}

/** Draws the ranks of a training. */
export class RanksView {
  readonly #training: PageTraining;
  #views: readonly RankView[] = [];

  constructor(training: PageTraining) {
    this.#training = training;
    byId("ranks-view", HTMLDivElement).classList.toggle("many", training.ranks.length > 4);
    const entries = training.ranks.map(({ rank }) => [`own${rank}`, `kept by rank ${rank}`] as const);
    legend("parts-legend", entries);
  }

  draw(): void {
    const { ranks } = this.#training;
    if (this.#views.length === 0) {
      if (ranks.some(({ scene }) => scene === undefined)) return;
      this.#views = ranks.map((rank) => this.#build(rank));
      byId("ranks-view", HTMLDivElement).replaceChildren(...this.#views.map(({ card }) => card));
    }
    for (const [i, view] of this.#views.entries()) {
      const rank = ranks[i];
      if (rank?.scene !== undefined) this.#update(view, rank, rank.scene.units);
    }
  }

  #build({ rank, scene }: PageRank): RankView {
    const card = made("section", "rank-card");
    card.setAttribute("aria-label", `Rank ${rank}`);
    const head = made("p", "rank-head");
    const work = made("span", "work");
    const name = made("strong", "", `Rank ${rank}`);
    name.prepend(made("span", `swatch own${rank}`));
    head.append(name, " ", work);
    const list = made("div", "units");
    const names = made("div", "row-names");
    names.append(...["", ...ROWS].map((text) => made("span", "", text)));
    list.append(names);
    const units = new Map([...scene?.units.keys() ?? []].map((unit) => {
      const box = made("div", "unit");
      box.title = unit;
      const rows = {
        parameters: made("span", "parts"),
        gradients: made("span", "parts"),
        optimizer: made("span", "parts"),
      };
      box.append(made("span", "unit-name", labelOf(unit)), rows.parameters, rows.gradients, rows.optimizer);
      list.append(box);
      return [unit, { box, rows }] as const;
    }));
    card.append(head, list);
    return { work, units, card };
  }

  #update({ work, units, card }: RankView, rank: PageRank, states: ReadonlyMap<string, UnitState>): void {
    const { moment } = rank.scene ?? {};
    setText(work, workOf(rank, moment));
    card.classList.toggle("dead", rank.state === "killed" || rank.state === "failed");
    for (const [name, { box, rows }] of units) {
      const state = states.get(name);
      if (state === undefined) continue;
      const activity = rank.state === "trains" ? state.activity ?? "idle" : "idle";
      if (box.dataset["activity"] !== activity) box.dataset["activity"] = activity;
      for (const row of ROWS) this.#fill(rows[row], rank.rank, state[row]);
    }
  }

  #fill(row: HTMLElement, rank: number, held: HeldPart): void {
    if (row.dataset["held"] === held) return;
    row.dataset["held"] = held;
    const { length } = this.#training.ranks;
    const color = (part: number): string =>
      held === "all" || (held === "own" && part === rank) ? `var(--c${part})` : "transparent";
    const stops = Array.from(
      { length },
      (_, part) => `${color(part)} ${100 * part / length}% ${100 * (part + 1) / length}%`,
    );
    row.style.background = `linear-gradient(90deg, ${stops.join(", ")})`;
  }
}

function workOf(rank: PageRank, moment: Moment | undefined): string {
  if (rank.state === "killed") return "was killed";
  if (rank.state === "failed") return "ended with an error";
  if (rank.state === "ended") return "has ended";
  if (moment === undefined) return "between steps";
  if (moment.call.startsWith("all-reduce")) return moment.call;
  const what = moment.activity === "reduce" ? moment.call.split(" ", 1)[0] ?? "" : WORK[moment.activity];
  return `${what} · ${shortName(moment.unit)}`;
}

/** Sets a text where it is another one, so that nothing is laid out anew for nothing. */
export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}
