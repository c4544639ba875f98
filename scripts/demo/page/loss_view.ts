/**
 * The losses of a training: a line, the newest number, and a table of all numbers in full.
 *
 * @module
 */
/// <reference lib="dom" />
import type { DemoStep } from "../../../src/demo/events.ts";
import { byId, drawn, made } from "./elements.ts";

const [WIDTH, HEIGHT, MARGIN] = [600, 140, 6];

/** Draws the losses of a training. */
export class LossView {
  readonly #steps: number;
  readonly #losses: number[] = [];
  readonly #line: SVGElement;
  readonly #text: HTMLElement = byId("loss-text", HTMLParagraphElement);
  readonly #rows: HTMLElement = byId("rows", HTMLTableSectionElement);
  #newRows: HTMLElement[] = [];

  constructor(steps: number) {
    this.#steps = steps;
    this.#line = drawn("polyline", { class: "loss-line", fill: "none" });
    byId("loss", SVGSVGElement).replaceChildren(
      drawn("line", { x1: 0, y1: HEIGHT - 0.5, x2: WIDTH, y2: HEIGHT - 0.5, class: "axis" }),
      this.#line,
    );
    this.#rows.replaceChildren();
    this.#text.textContent = "No step yet.";
  }

  add({ step, loss, gradNorm }: DemoStep): void {
    this.#losses.push(loss);
    const row = made("tr");
    const head = made("th", "", String(step));
    head.scope = "row";
    row.append(head, made("td", "", String(loss)), made("td", "", String(gradNorm)));
    this.#newRows.push(row);
  }

  draw(): void {
    if (this.#newRows.length === 0) return;
    this.#rows.append(...this.#newRows.splice(0));
    const highest = Math.max(...this.#losses);
    const points = this.#losses.map((loss, i) => {
      const x = this.#steps === 1 ? WIDTH / 2 : WIDTH * i / (this.#steps - 1);
      return `${x.toFixed(1)},${(HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * loss / highest).toFixed(1)}`;
    });
    this.#line.setAttribute("points", points.join(" "));
    const [first = NaN] = this.#losses;
    const last = this.#losses.at(-1) ?? NaN;
    this.#text.textContent = `Step ${this.#losses.length} of ${this.#steps}: loss ${last.toFixed(4)}; ` +
      `it was ${first.toFixed(4)} at the first step. Lower is better.`;
  }
}
