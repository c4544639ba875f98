/**
 * A training of the page: its Workers, their pace, and what they tell.
 *
 * Note [One thread]: a page without the isolation headers may share no memory, so a single rank trains, and nothing can hold it within a
 * step. It takes one step at a time, and the page plays the step's events at its own pace before it asks for the next one.
 *
 * @module
 */
/// <reference lib="dom" />
import { markDead } from "../../../src/comm/control/workers.ts";
import { createLoopbackWorld } from "../../../src/comm/data/loopback.ts";
import type { DemoMessage, DemoOrder, DemoStep, MeasuredMemory } from "../../../src/demo/events.ts";
import { Pace } from "../../../src/demo/pace.ts";
import { Player } from "../../../src/demo/player.ts";
import { RankScene } from "../../../src/demo/scene.ts";
import type { DemoSettings } from "../../../src/demo/settings.ts";

/** Most tokens of the sample at the end. */
const SAMPLE_TOKENS = 160;

/** A rank of the page. */
export interface PageRank {
  readonly rank: number;
  readonly worker: Worker;
  scene: RankScene | undefined;
  /** True if it waits at a moment. */
  waits: boolean;
  /** Memory under the other strategy, and of the last step. */
  other: MeasuredMemory | undefined;
  measured: MeasuredMemory | undefined;
  state: "opens" | "trains" | "ended" | "failed" | "killed";
  error: string;
}

/** Receives the news of a training. */
export interface TrainingNews {
  /** Something is to be drawn anew. */
  changed(): void;
  /** The first rank has taken a step. */
  stepped(step: DemoStep): void;
  sampled(text: string): void;
}

/** A training that goes on. */
export class PageTraining {
  readonly settings: DemoSettings;
  readonly ranks: readonly PageRank[];
  readonly #news: TrainingNews;
  readonly #world: DemoOrder["world"];
  readonly #pace: Pace | undefined;
  readonly #player: Player | undefined;
  /** Milliseconds between moments; 0 for full speed. */
  #delay = 0;
  #isPaused = false;
  #step = 0;
  #timer: ReturnType<typeof setInterval> | undefined;

  /** Starts the ranks. */
  constructor(settings: DemoSettings, text: string, delay: number, news: TrainingNews) {
    this.settings = settings;
    this.#news = news;
    this.#delay = delay;
    const [world, otherWorld] = [createLoopbackWorld(settings.ranks), createLoopbackWorld(settings.ranks)];
    this.#world = world;
    this.#pace = crossOriginIsolated ? Pace.make(settings.ranks) : undefined;
    this.#player = this.#pace === undefined
      ? new Player((message) => this.#take(message), (step) => this.#ask(step))
      : undefined;
    this.ranks = Array.from({ length: settings.ranks }, (_, rank): PageRank => {
      const worker = new Worker("rank.js", { type: "module", name: `rank ${rank}` });
      worker.addEventListener("message", ({ data }: MessageEvent<DemoMessage>) => this.#hear(data));
      worker.addEventListener("error", ({ message }) => this.#hear({ rank, type: "failed", name: "Error", message }));
      const order: DemoOrder = {
        settings,
        rank,
        text,
        world,
        otherWorld,
        pace: this.#pace?.words,
        sampleTokens: SAMPLE_TOKENS,
      };
      worker.postMessage(order);
      return {
        rank,
        worker,
        scene: undefined,
        waits: false,
        other: undefined,
        measured: undefined,
        state: "opens",
        error: "",
      };
    });
    this.#apply();
  }

  /** True if the ranks can be held within a step. */
  get hasMoments(): boolean {
    return this.#pace !== undefined;
  }

  get isPaused(): boolean {
    return this.#isPaused;
  }

  /** True once all ranks train. */
  get hasBegun(): boolean {
    return this.ranks.every(({ state }) => state !== "opens");
  }

  /** True if all ranks wait at a moment. */
  get isWaiting(): boolean {
    return this.ranks.every(({ state, waits }) => state !== "trains" || waits);
  }

  get isOver(): boolean {
    return this.ranks.every(({ state }) => state === "ended" || state === "failed" || state === "killed");
  }

  /** Steps that the first rank has taken. */
  get step(): number {
    return this.#step;
  }

  pause(isPaused: boolean): void {
    this.#isPaused = isPaused;
    this.#apply();
  }

  setDelay(delay: number): void {
    this.#delay = delay;
    this.#apply();
  }

  /** Goes on by one moment, and pauses. */
  nextMoment(): void {
    this.pause(true);
    this.#advance();
  }

  /** Goes on to the end of the step under way, or of the next one, and pauses. */
  nextStep(): void {
    this.#isPaused = true;
    clearInterval(this.#timer);
    this.#pace?.allowSteps(this.#step + 1);
    this.#pace?.free();
    this.#player?.nextStep();
    this.#news.changed();
  }

  /** Ends a rank's Worker, as a machine that fails ends its process. */
  kill(rank: number): void {
    const killed = this.ranks[rank];
    if (killed === undefined) return;
    this.#pace?.kill(rank);
    killed.worker.terminate();
    killed.state = "killed";
    markDead(this.#world, rank);
    // The others go on until they miss the rank.
    this.#isPaused = false;
    this.#delay = 0;
    this.#apply();
  }

  /** Ends all Workers. */
  close(): void {
    clearInterval(this.#timer);
    for (const { worker } of this.ranks) worker.terminate();
  }

  /** Makes the ranks go at the pace that is asked for. */
  #apply(): void {
    clearInterval(this.#timer);
    const isHeld = this.#isPaused || this.#delay > 0;
    this.#pace?.allowSteps(this.settings.steps);
    if (isHeld) this.#pace?.hold();
    else this.#pace?.free();
    if (this.#player !== undefined) this.#player.isHeld = isHeld;
    if (!this.#isPaused && this.#delay > 0) this.#timer = setInterval(() => this.#advance(), this.#delay);
    this.#news.changed();
  }

  #advance(): void {
    const training = this.ranks.filter(({ state }) => state === "trains");
    if (this.#pace?.advance(training.map(({ rank }) => rank)) === true) {
      for (const rank of training) rank.waits = false;
    }
    this.#player?.advance();
  }

  #ask(step: number): void {
    for (const { worker } of this.ranks) worker.postMessage({ allowedSteps: step });
  }

  #hear(message: DemoMessage): void {
    if (this.#player === undefined) this.#take(message);
    else this.#player.hear(message);
  }

  #take(message: DemoMessage): void {
    const rank = this.ranks[message.rank];
    if (rank === undefined || rank.state === "killed") return;
    if (message.type === "ready") {
      rank.scene = new RankScene(message.units.map(({ name }) => name), this.settings.strategy);
      rank.other = message.other;
      rank.state = "trains";
    } else if (message.type === "events") {
      for (const event of message.events) rank.scene?.apply(event);
      rank.waits = message.waits;
    } else if (message.type === "step") {
      rank.measured = message.step;
      rank.scene?.endStep();
      if (message.rank === 0) {
        this.#step = message.step.step;
        this.#news.stepped(message.step);
      }
    } else if (message.type === "sample") {
      if (message.rank === 0) this.#news.sampled(message.text);
    } else if (message.type === "end") rank.state = "ended";
    else {
      rank.state = "failed";
      rank.error = `${message.name}: ${message.message}`;
    }
    this.#news.changed();
  }
}
