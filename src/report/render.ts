/**
 * A report as one file of HTML that needs no other: markup, style, scripts and numbers. A policy in it lets the page run these
 * scripts and nothing else, and load nothing.
 *
 * @module
 */
import { differencesOf } from "./compare.ts";
import { embeddedJson, type Html, type HtmlValue, safe } from "./html.ts";
import { pageAssets } from "./page/assets.ts";
import type { RecordedRun } from "./read_run.ts";
import {
  configurationOf,
  environmentOf,
  eventListOf,
  factsOf,
  memoryOf,
  ranksOf,
  samplesOf,
  shardingOf,
  table,
} from "./sections.ts";
import { heldOutLosses, MEASURES } from "./series.ts";
import { timelineMarkup } from "./timeline_svg.ts";
import { shown } from "../words.ts";
import { settingText } from "./words_of_numbers.ts";

/** Most runs of a report: as many as there are colors. */
export const MOST_RUNS = 8;

/**
 * The page of one run, or of several runs laid over each other.
 *
 * @param controls markup above the numbers of a live page, whose script follows the run
 */
export async function renderReport(runs: readonly RecordedRun[], controls?: Html): Promise<string> {
  const { style, charts, script, liveScript, licence } = pageAssets;
  const scripts = [charts, script, ...controls === undefined ? [] : [liveScript]];
  const [only] = runs;
  const title = runs.length === 1 && only !== undefined ? only.name : `${runs.length} runs`;
  const policy = [
    "default-src 'none'",
    `style-src ${await hashOf(style)}`,
    `script-src ${(await Promise.all(scripts.map(hashOf))).join(" ")}`,
    `connect-src ${controls === undefined ? "'none'" : "'self'"}`,
    "base-uri 'none'; form-action 'none'",
  ].join("; ");
  const page = safe`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="color-scheme" content="light dark">
<title>${title} – fullyshard</title>
`.text;
  const body = safe`
<a class="skip" href="#main">Skip to the numbers</a>
<header><h1>${title}</h1>${runs.length > 1 ? legendOf(runs) : undefined}</header>
<main id="main">
${controls}
${runs.length > 1 ? section("differences", "Differences of configuration", comparisonOf(runs)) : undefined}
${runs.length === 1 && only !== undefined ? section("facts", "The run", factsOf(only)) : undefined}
${section("numbers", "Numbers by step", chartsOf(runs, controls !== undefined))}
${runs.map((run, i) => runMarkup(run, i, runs.length))}
</main>
<footer><p>Written by fullyshard from the files of the run's folder. Charts are drawn by uPlot.</p><details><summary>uPlot's licence</summary><pre>${licence}</pre></details></footer>
`.text;
  const data = safe`<script type="application/json" id="data">${embeddedJson(dataOf(runs))}</script>`.text;
  // The style and scripts are hashed as they are, so nothing may stand between them and their tags.
  const tags = scripts.map((text) => `<script>${text}</script>`).join("\n");
  return `${page}<style>${style}</style>\n</head>\n<body>${body}${data}\n${tags}\n</body>\n</html>\n`;
}

/** Sections that change with every step; the others change with the record, events or traces of a run. */
const BY_STEP = ["facts", "ranks"];

/** Markup of a run's sections by their ids. A live page replaces either the sections that change with every step, or the others. */
export function sectionsOf(run: RecordedRun, which: "by step" | "others"): Readonly<Record<string, string>> {
  const parts = partsOf(run).filter(([id]) => BY_STEP.includes(id) === (which === "by step"));
  return Object.fromEntries(parts.map(([id, , markup]) => [id, markup().text]));
}

/** The numbers that charts draw. */
export function dataOf(runs: readonly RecordedRun[]): unknown {
  return {
    measures: MEASURES,
    runs: runs.map(({ name, series }) => {
      const { steps, values } = series;
      const named = Object.fromEntries(Object.entries(values).map(([key, list]) => [shown(key), list]));
      return {
        name: shown(name.toWellFormed()),
        heldOut: heldOutLosses(series).map(shown),
        steps,
        values: named,
      };
    }),
  };
}

/** Sections of one run. */
function partsOf(run: RecordedRun): readonly (readonly [id: string, title: string, markup: () => Html])[] {
  return [
    ["facts", "The run", () => factsOf(run)],
    ["memory", "Memory by owner", () => memoryOf(run)],
    ["ranks", "Ranks that were late", () => ranksOf(run)],
    ["timeline", "A step of each rank", () => run.timeline === undefined ? noTimeline : timelineMarkup(run.timeline)],
    ["sharding", "Sharding", () => shardingOf(run)],
    ["configuration", "Configuration", () => configurationOf(run)],
    ["environment", "Environment", () => environmentOf(run)],
    ["samples", "Samples", () => samplesOf(run)],
    ["events", "Warnings and saves", () => eventListOf(run)],
  ];
}

function runMarkup(run: RecordedRun, index: number, count: number): Html {
  const parts = partsOf(run);
  // Of one run the facts come first, above the charts.
  if (count === 1) return safe`${parts.slice(1).map(([id, title, markup]) => section(id, title, markup()))}`;
  return safe`
    <section class="run"
      aria-labelledby="run${index}"><h2 id="run${index}">${mark(index)} ${run.name}</h2>${
    parts.map((
      [id, title, markup],
    ) => safe`<details${id === "facts" ? opened : undefined}><summary>${title}</summary>${markup()}</details>`)
  }</section>
  `;
}

const opened: Html = safe` open`;
const noTimeline: Html = safe`<p>There is no trace of a finished step in the folder.</p>`;

function section(id: string, title: string, markup: HtmlValue): Html {
  return safe`
    <section id="${id}" aria-labelledby="${id}-title">
      <h2 id="${id}-title">${title}</h2>
      <div class="body">${markup}</div>
    </section>
  `;
}

/** The color and dash of a run. */
function mark(index: number): Html {
  return safe`
    <svg class="mark run${index}" aria-hidden="true" focusable="false">
      <line x1="0" y1="50%" x2="100%" y2="50%" />
    </svg>
  `;
}

function legendOf(runs: readonly RecordedRun[]): Html {
  return safe`<ul class="legend">${runs.map(({ name }, i) => safe`<li>${mark(i)} ${name}</li>`)}</ul>`;
}

function comparisonOf(runs: readonly RecordedRun[]): Html {
  const differences = differencesOf(runs);
  const unknown = runs.filter(({ record }) => record === undefined).map(({ name }) => name);
  const note = unknown.length === 0 ? undefined : safe`<p>The configuration of ${unknown.join(", ")} is not known.</p>`;
  if (differences.length === 0) return safe`${note}<p>No setting differs, as far as records tell.</p>`;
  return safe`${note}${
    table(
      "Settings that differ",
      ["Key", ...runs.map(({ name }) => name)],
      differences.map(({ key, values }) => [key, ...values.map((value) => safe`<code>${settingText(value)}</code>`)]),
    )
  }`;
}

/** Places of the charts; the page's script fills them. */
function chartsOf(runs: readonly RecordedRun[], isLive: boolean): Html {
  if (!isLive && runs.every(({ series }) => series.steps.length === 0)) return safe`<p>There are no numbers yet.</p>`;
  const most = Math.max(...runs.map(({ series }) => series.stepsAPoint));
  return safe`
    <noscript><p>Charts need JavaScript; the last numbers are below.</p></noscript>
    ${most > 1 ? safe`<p>A point is the mean of ${most} steps, where a run has so many.</p>` : undefined}
    <div
      class="reader"><label for="step">Step</label><input id="step" type="range" min="0" max="0" value="0" step="1"><output id="values" for="step" aria-live="polite"></output></div>
    <div class="charts">${
    MEASURES.map(({ key, title, unit }) =>
      safe`
        <figure class="chart" data-key="${key}">
          <figcaption><span>${title}</span> <small>${unit}</small></figcaption>
          <div class="plot" role="img" aria-label="${title} by step"></div>
        </figure>
      `
    )
  }</div>
  `;
}

/** A source of a content security policy: the SHA-256 of a text. */
async function hashOf(text: string): Promise<string> {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return `'sha256-${btoa(String.fromCharCode(...new Uint8Array(digest)))}'`;
}
