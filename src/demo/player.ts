/**
 * Plays the messages of a rank that nothing can hold within a step: see Note [One thread] of the page's training.
 *
 * @module
 */
import { isMoment } from "./event_teller.ts";
import type { DemoMessage } from "./events.ts";

/** Plays messages in their order, moment by moment while it is held. */
export class Player {
  readonly #take: (message: DemoMessage) => void;
  readonly #ask: (step: number) => void;
  readonly #queue: DemoMessage[] = [];
  #step = 0;
  #isHeld = false;
  #stopsAtStep = false;

  /**
   * @param take receives each message once it is played
   * @param ask asks the rank for steps up to this one
   */
  constructor(take: (message: DemoMessage) => void, ask: (step: number) => void) {
    this.#take = take;
    this.#ask = ask;
  }

  /** True if messages wait until they are asked for. */
  set isHeld(isHeld: boolean) {
    this.#isHeld = isHeld;
    this.#goOn();
  }

  /** Takes a message of the rank; its events come one at a time. */
  hear(message: DemoMessage): void {
    if (message.type !== "events") this.#queue.push(message);
    else for (const event of message.events) this.#queue.push({ ...message, events: [event], waits: true });
    if (message.type === "ready") this.#askNext();
    this.#goOn();
  }

  /** Plays up to the next moment. */
  advance(): void {
    for (let message = this.#queue.shift(); message !== undefined; message = this.#queue.shift()) {
      this.#play(message);
      if (message.type === "events" && message.events.some((event) => isMoment(event, "fsdp"))) return;
    }
  }

  /** Plays up to the end of a step. */
  nextStep(): void {
    this.#isHeld = false;
    this.#stopsAtStep = true;
    this.#goOn();
  }

  #goOn(): void {
    while (!this.#isHeld) {
      const message = this.#queue.shift();
      if (message === undefined) return;
      this.#play(message);
    }
  }

  #play(message: DemoMessage): void {
    this.#take(message);
    if (message.type !== "step") return;
    if (this.#stopsAtStep) this.#isHeld = true;
    this.#stopsAtStep = false;
    this.#askNext();
  }

  #askNext(): void {
    this.#ask(++this.#step);
  }
}
