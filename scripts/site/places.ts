/**
 * Markup in place of comments of documents: the demo, and the estimate of settings. Elsewhere than on the site a reader sees neither.
 *
 * @module
 */
import { type Html, safe } from "../../src/report/html.ts";

/** A part of a page that stands for a comment. */
export interface Place {
  readonly markup: Html;
  /** Modules of the page. */
  readonly scripts: readonly string[];
}

const demo = safe`<p><a href="demo/index.html">The demo in a window of its own</a></p>
<iframe class="demo" src="demo/index.html" title="FSDP at work: a model that trains in this page" loading="lazy"></iframe>
`;

const number = (name: string, label: string, value: number, most: number): Html =>
  safe`<label>${label} <input name="${name}" type="number" min="1" max="${most}" value="${value}" required></label>
`;

const estimate = safe`<form id="estimate" class="estimate" aria-label="Model and machine">
<div class="fields">
<label>Model <select id="estimate-model"></select></label>
${
  number("ranks", "Ranks", 8, 65536)
}<label>Computes on <select name="device"><option value="cuda">cards</option><option value="cpu">the CPU</option></select></label>
${
  number("memory", "GiB of a rank", 80, 4096)
}<label>Precision <select name="precision"><option>bfloat16</option><option>float16</option><option>float32</option></select></label>
${number("seq", "Tokens of a sample", 2048, 1048576)}${number("batch", "Samples of a rank", 1, 4096)}</div>
<details><summary>Its config.json, to be changed or replaced by yours</summary>
<label class="hidden" for="estimate-config">config.json</label><textarea id="estimate-config" rows="12" spellcheck="false"></textarea></details>
<button type="submit">Compare settings</button>
</form>
<p id="estimate-said" role="status"></p>
<div class="wide"><table class="estimated"><caption class="hidden">Settings, with what each rank needs</caption>
<thead><tr><th scope="col">Settings</th><th scope="col" class="right">Peak memory of a rank</th><th scope="col" class="right">Received in a step</th><th scope="col">Fits?</th></tr></thead>
<tbody id="estimate-rows"></tbody></table></div>
<div id="estimate-details" aria-live="polite"></div>
`;

/** Places by the words of their comments. */
export const PLACES: Readonly<Record<string, Place>> = {
  demo: { markup: demo, scripts: [] },
  estimate: { markup: estimate, scripts: ["estimate.js"] },
};
