/**
 * The page of settings: compares settings for a model and a machine, by dry runs in a Worker.
 *
 * @module
 */
/// <reference lib="dom" />
import { formatBytes } from "../../../src/words.ts";
import { byId, made } from "../../demo/page/elements.ts";
import { type Candidate, candidatesFor, type Choices, flagsOf, keysOf } from "./estimate_settings.ts";
import type { EstimateAnswer, EstimateAsked } from "./estimate_worker.ts";
import { type ModelConfig, MODELS } from "./models.ts";

const form = byId("estimate", HTMLFormElement);
const preset = byId("estimate-model", HTMLSelectElement);
const text = byId("estimate-config", HTMLTextAreaElement);
const rows = byId("estimate-rows", HTMLTableSectionElement);
const said = byId("estimate-said", HTMLParagraphElement);
const details = byId("estimate-details", HTMLElement);
const PASTED = "pasted";

let worker: Worker | undefined;
let number = 0;

for (const name of Object.keys(MODELS)) preset.add(new Option(name, name));
preset.add(new Option("config.json, pasted below", PASTED));
showPreset();
preset.addEventListener("change", showPreset);
text.addEventListener("input", () => preset.value = PASTED);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  void compare();
});
form.dataset["ready"] = "true";

function showPreset(): void {
  const model = MODELS[preset.value];
  if (model !== undefined) text.value = JSON.stringify(model, undefined, 2);
}

function choicesOf(): Choices {
  const data = new FormData(form);
  const [device, precision] = [String(data.get("device")), String(data.get("precision"))];
  return {
    ranks: Number(data.get("ranks")),
    device: device === "cpu" ? "cpu" : "cuda",
    precision: precision === "float32" ? "float32" : precision === "float16" ? "float16" : "bfloat16",
    seq: Number(data.get("seq")),
    batch: Number(data.get("batch")),
    memory: Number(data.get("memory")),
  };
}

/** The model as it stands in the page. */
function modelOf(): ModelConfig | string {
  try {
    const model: unknown = JSON.parse(text.value);
    if (typeof model === "object" && model !== null && !Array.isArray(model)) return { ...model };
    return "Expected the object of a config.json.";
  } catch (error) {
    return `The text is no JSON: ${error instanceof Error ? error.message : String(error)}`;
  }
}

/** Estimates the candidates one after another, and says which is the first that fits. */
async function compare(): Promise<void> {
  const mine = ++number;
  const [choices, model] = [choicesOf(), modelOf()];
  rows.replaceChildren();
  details.replaceChildren();
  if (typeof model === "string") return void (said.textContent = model);
  let first: string | undefined;
  const problems = new Set<string>();
  for (const candidate of candidatesFor(choices)) {
    said.textContent = `Running a step of “${candidate.name}” dry …`;
    const keys = keysOf(choices, candidate, "config.json");
    const answer = await ask({ number: mine, keys, model });
    if (mine !== number) return; // the visitor has asked for something else
    const fits = "peakBytes" in answer && answer.peakBytes <= choices.memory * 2 ** 30;
    if (fits) first ??= candidate.name;
    if ("problem" in answer) problems.add(answer.problem);
    rows.append(rowOf(candidate, flagsOf(keys), answer, fits));
  }
  const failed = problems.size === 1 && first === undefined && rows.querySelector("[data-peak]") === null;
  said.textContent = failed
    ? [...problems].join()
    : first === undefined
    ? `Nothing of this fits ${choices.memory} GiB. Take more ranks, a shorter sequence or a smaller batch.`
    : `“${first}” is the first that fits ${choices.memory} GiB: those above it are faster, those below need less memory.`;
}

function rowOf(candidate: Candidate, argv: readonly string[], answer: EstimateAnswer, fits: boolean): HTMLElement {
  const row = made("tr");
  const name = made("th");
  name.scope = "row";
  row.append(name);
  if ("problem" in answer) {
    name.textContent = candidate.name;
    const problem = made("td", "", answer.problem);
    problem.colSpan = 3;
    row.append(problem);
    return row;
  }
  row.dataset["peak"] = String(answer.peakBytes);
  row.dataset["json"] = answer.json;
  row.dataset["argv"] = JSON.stringify(argv);
  row.dataset["fits"] = String(fits);
  const button = made("button", "", candidate.name);
  button.type = "button";
  button.addEventListener("click", () => showDetails(candidate, argv, answer.lines));
  name.append(button);
  const host = answer.hostBytes > 0 ? ` + ${formatBytes(answer.hostBytes)} of the host` : "";
  row.append(
    made("td", "right", formatBytes(answer.peakBytes) + host),
    made("td", "right", formatBytes(answer.received)),
    made("td", fits ? "fits" : "", fits ? "fits" : "too large"),
  );
  return row;
}

function showDetails(candidate: Candidate, argv: readonly string[], lines: readonly string[]): void {
  const pre = made("pre");
  pre.tabIndex = 0;
  pre.append(made("code", "", `$ npx fullyshard estimate ${argv.join(" ")}\n\n${lines.join("\n")}`));
  const figure = made("figure", "code");
  figure.append(made("figcaption", "", candidate.name), pre);
  details.replaceChildren(figure);
}

function ask(asked: EstimateAsked): Promise<EstimateAnswer> {
  const asking = worker ??= new Worker(new URL("estimate_worker.js", import.meta.url), { type: "module" });
  return new Promise((resolve) => {
    const end = (answer: EstimateAnswer): void => {
      asking.removeEventListener("message", take);
      asking.removeEventListener("error", fail);
      resolve(answer);
    };
    const take = ({ data }: MessageEvent<EstimateAnswer>): void => {
      if (data.number === asked.number) end(data);
    };
    const fail = (): void => end({ number: asked.number, problem: "The code of the estimate could not be loaded." });
    asking.addEventListener("message", take);
    asking.addEventListener("error", fail);
    asking.postMessage(asked);
  });
}
