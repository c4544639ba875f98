/**
 * The Worker of a demo's rank: measures the other strategy, then trains, and tells the page its trace as it happens.
 *
 * @module
 */
import { config } from "zod";
import { workerScope } from "../runtime/worker_scope.ts";
import type { DemoMessage, DemoOrder } from "./events.ts";
import { EventTeller } from "./event_teller.ts";
import { Pace } from "./pace.ts";
import { measureMemory, openDemoRank } from "./rank.ts";

/** A message without its rank. */
type WithoutRank<Message> = Message extends { readonly rank: number } ? Omit<Message, "rank"> : never;

listen();

function listen(): void {
  // A page's policy lets no text be run as code, which zod would try.
  config({ jitless: true });
  globalThis.addEventListener("message", (event) => {
    if (event instanceof MessageEvent && isOrder(event.data)) void train(event.data);
  });
}

/** Resolves when the page has asked for a step, where no memory is shared: it says up to which one. */
function stepsAsked(): (step: number) => Promise<void> {
  let allowed = 0;
  let wake = (): void => {};
  globalThis.addEventListener("message", (event) => {
    const message: unknown = event instanceof MessageEvent ? event.data : undefined;
    if (typeof message !== "object" || message === null || !("allowedSteps" in message)) return;
    allowed = Number(message.allowedSteps);
    wake();
  });
  return async (step) => {
    while (allowed < step) await new Promise<void>((resolve) => wake = resolve);
  };
}

async function train(order: DemoOrder): Promise<void> {
  const scope = workerScope();
  const { rank, settings, text, world, otherWorld } = order;
  const tell = (message: WithoutRank<DemoMessage>): void => scope.postMessage({ ...message, rank });
  try {
    const asked = stepsAsked();
    const pace = order.pace === undefined ? undefined : new Pace(order.pace);
    const strategy = settings.strategy === "fsdp" ? "ddp" : "fsdp";
    const { units: parts, ...other } = await measureMemory({
      ...{ rank, text, world: otherWorld, settings: { ...settings, strategy } },
    });
    const teller = new EventTeller(order, pace, (events, waits) => tell({ type: "events", events, waits }));
    const place = { rank, text, world, settings, sink: teller, parts: parts.map(({ name }) => name) };
    await using opened = await openDemoRank(place);
    teller.memory = () => opened.memory;
    tell({ type: "ready", units: parts.length > 0 ? parts : opened.units, other });
    for (let step = 1; step <= settings.steps; step++) {
      if (pace === undefined) await asked(step);
      else pace.passStep(step);
      const taken = await opened.step();
      teller.flushAll();
      tell({ type: "step", step: taken });
    }
    teller.isQuiet = true;
    tell({ type: "sample", text: opened.sample(order.sampleTokens) });
    tell({ type: "end" });
  } catch (error) {
    const { name, message } = error instanceof Error ? error : new Error(String(error));
    tell({ type: "failed", name, message });
  }
}

function isOrder(message: unknown): message is DemoOrder {
  return typeof message === "object" && message !== null && "settings" in message && "world" in message;
}
