/**
 * The demo's page: reads what the visitor chooses, starts and paces the ranks, and draws what their traces tell.
 *
 * @module
 */
/// <reference lib="dom" />
import {
  DEMO_MODEL,
  demoCommand,
  type DemoSettings,
  FIRST_SETTINGS,
  MOST_DEMO_RANKS,
} from "../../../src/demo/settings.ts";
import { byId } from "./elements.ts";
import { FIRST_TEXT } from "./first_text.ts";
import { LossView } from "./loss_view.ts";
import { MemoryView } from "./memory_view.ts";
import { RanksView, setText } from "./ranks_view.ts";
import { TimelineView } from "./timeline_view.ts";
import { PageTraining } from "./training.ts";
import { sentenceOf, storyOf } from "./words.ts";

const [start, pause, moment, step, kill] = ["start", "pause", "moment", "step", "kill"].map((id) =>
  byId(id, HTMLButtonElement)
);
const [ranks, strategy, speed, victim] = ["ranks", "strategy", "speed", "victim"].map((id) =>
  byId(id, HTMLSelectElement)
);
const [reshard, prefetch, checkpointing, steps, seed] = ["reshard", "prefetch", "checkpointing", "steps", "seed"].map((
  id,
) => byId(id, HTMLInputElement));
const text = byId("text", HTMLTextAreaElement);
const now = byId("now", HTMLParagraphElement);
const failure = byId("failure", HTMLParagraphElement);
const sample = byId("sample", HTMLParagraphElement);
const story = [...document.querySelectorAll<HTMLElement>("#story > li")];

/** A training with its pictures. */
interface Shown {
  readonly training: PageTraining;
  readonly ranks: RanksView;
  readonly memory: MemoryView;
  readonly timeline: TimelineView;
  readonly loss: LossView;
}

/** Milliseconds between two drawings at full speed, which take time from the ranks. */
const REST_MS = 100;

let shown: Shown | undefined;
let isDrawing = false;

begin();

function begin(): void {
  text.value = FIRST_TEXT;
  const most = crossOriginIsolated ? MOST_DEMO_RANKS : 1;
  for (let n = 1; n <= most; n++) ranks?.append(new Option(String(n), String(n), false, n === FIRST_SETTINGS.ranks));
  if (!crossOriginIsolated) {
    const note = byId("note", HTMLParagraphElement);
    note.hidden = false;
    note.textContent = "This page was served without the headers “Cross-Origin-Opener-Policy: same-origin” and " +
      "“Cross-Origin-Embedder-Policy: require-corp”, so it may share no memory: one rank trains in one thread. " +
      "“fullyshard demo” serves it with them.";
  }
  byId("controls", HTMLFormElement).addEventListener("submit", (event) => {
    event.preventDefault();
    train();
  });
  pause?.addEventListener("click", () => shown?.training.pause(!shown.training.isPaused));
  moment?.addEventListener("click", () => {
    shown?.training.nextMoment();
    draw();
  });
  step?.addEventListener("click", () => shown?.training.nextStep());
  kill?.addEventListener("click", () => shown?.training.kill(Number(victim?.value)));
  speed?.addEventListener("change", () => shown?.training.setDelay(Number(speed.value)));
  for (const choice of [ranks, strategy, reshard, prefetch, checkpointing, steps, seed]) {
    choice?.addEventListener("change", showCommand);
  }
  text.addEventListener("input", showCommand);
  showCommand();
}

/** The settings as the visitor has chosen them. */
function chosen(): DemoSettings {
  return {
    ranks: Number(ranks?.value),
    strategy: strategy?.value === "ddp" ? "ddp" : "fsdp",
    reshardAfterForward: reshard?.checked === true,
    prefetch: prefetch?.checked === true,
    checkpointing: checkpointing?.checked === true,
    steps: Math.max(1, Math.trunc(Number(steps?.value))),
    seed: Math.max(0, Math.trunc(Number(seed?.value))),
  };
}

function train(): void {
  shown?.training.close();
  failure.hidden = true;
  sample.hidden = true;
  byId("results", HTMLDivElement).hidden = false;
  byId("killing", HTMLDivElement).hidden = false;
  const settings = chosen();
  const training = new PageTraining(settings, text.value, Number(speed?.value), {
    changed: requestDrawing,
    stepped: (taken) => shown?.loss.add(taken),
    sampled: (words) => {
      sample.hidden = false;
      sample.textContent = `The model writes, one letter after the other: ${words}`;
    },
  });
  shown = {
    training,
    ranks: new RanksView(training),
    memory: new MemoryView(training),
    timeline: new TimelineView(training),
    loss: new LossView(settings.steps),
  };
  byId("ranks-view", HTMLDivElement).replaceChildren();
  victim?.replaceChildren(...training.ranks.map(({ rank }) => new Option(String(rank), String(rank))));
  if (victim !== undefined) victim.value = String(settings.ranks - 1);
  setText(now, "The ranks start: each loads fullyshard, and fills its shards with random values.");
  requestDrawing();
}

function requestDrawing(): void {
  if (isDrawing) return;
  isDrawing = true;
  const drawNow = (): void => {
    isDrawing = false;
    draw();
  };
  if (isHeld()) requestAnimationFrame(drawNow);
  else setTimeout(drawNow, REST_MS);
}

/** True if the ranks go from moment to moment. */
function isHeld(): boolean {
  return shown?.training.isPaused === true || Number(speed?.value) > 0;
}

function draw(): void {
  if (shown === undefined) return;
  const { training, ranks, memory, timeline, loss } = shown;
  ranks.draw();
  memory.draw();
  timeline.draw(isHeld());
  loss.draw();
  drawStory(training);
  drawControls(training);
}

function drawStory(training: PageTraining): void {
  const first = training.ranks.find(({ state }) => state !== "killed");
  const current = isHeld() && !training.isOver ? first?.scene?.moment : undefined;
  if (current !== undefined) setText(now, sentenceOf(current, training.settings));
  else if (training.isOver) setText(now, endOf(training));
  else if (isHeld() && training.step > 0) setText(now, `Step ${training.step} is done.`);
  else if (first?.state === "trains") setText(now, `Trains at full speed: step ${training.step + 1}.`);
  const isKilled = training.ranks.some(({ state }) => state === "killed");
  const about = isKilled ? "kill" : current === undefined ? "" : storyOf(current, training.settings);
  for (const item of story) {
    if (item.dataset["about"] === about) item.setAttribute("aria-current", "true");
    else item.removeAttribute("aria-current");
  }
  const errors = training.ranks.filter(({ state }) => state === "failed");
  failure.hidden = errors.length === 0;
  setText(failure, errors.map(({ rank, error }) => `Rank ${rank}: ${error}`).join("\n"));
}

/** The end of a training in a sentence. */
function endOf({ ranks }: PageTraining): string {
  const killed = ranks.find(({ state }) => state === "killed");
  if (killed !== undefined) return `Rank ${killed.rank} was killed, and the other ranks have ended with an error:`;
  const hasFailed = ranks.some(({ state }) => state === "failed");
  return hasFailed ? "The training has ended with an error:" : "The training has ended.";
}

function drawControls({ hasBegun, isOver, isPaused, isWaiting, ranks: all }: PageTraining): void {
  byId("stage", HTMLElement).dataset["waits"] = String(isWaiting);
  const isKilled = all.some(({ state }) => state === "killed");
  for (const button of [pause, moment, step]) if (button !== undefined) button.disabled = isOver || !hasBegun;
  if (kill !== undefined) kill.disabled = isOver || !hasBegun || isKilled || all.length === 1;
  if (pause !== undefined) setText(pause, isPaused ? "Go on" : "Pause");
  if (start !== undefined) setText(start, "Train anew");
}

/** Shows the command that trains the same, and its files. */
function showCommand(): void {
  const command = demoCommand(chosen(), { model: "model.json", data: "text.txt" });
  setText(byId("command", HTMLPreElement), command.join(" "));
  offer("text-file", text.value, "text/plain");
  offer("model-file", JSON.stringify(DEMO_MODEL), "application/json");
}

function offer(id: string, content: string, type: string): void {
  const link = byId(id, HTMLAnchorElement);
  if (link.href.startsWith("blob:")) URL.revokeObjectURL(link.href);
  link.href = URL.createObjectURL(new Blob([content], { type }));
}
