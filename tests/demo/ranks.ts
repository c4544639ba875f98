/** The demo's ranks as Workers of this runtime, as the page starts them. @module */
import { createLoopbackWorld } from "../../src/comm/data/loopback.ts";
import type { DemoMessage } from "../../src/demo/events.ts";
import { Pace } from "../../src/demo/pace.ts";
import type { DemoSettings } from "../../src/demo/settings.ts";

/** A text that the tests train on. */
export const TEXT: string = "The quick brown fox jumps over the lazy dog, and the dog does not mind. ".repeat(8);

/** Trains to the end; resolves with all messages in the order in which they came. */
export async function trainDemo(settings: DemoSettings, text: string = TEXT): Promise<readonly DemoMessage[]> {
  const { ranks } = settings;
  const [world, otherWorld] = [createLoopbackWorld(ranks), createLoopbackWorld(ranks)];
  const pace = Pace.make(ranks);
  pace.allowSteps(settings.steps);
  pace.free();
  const messages: DemoMessage[] = [];
  const workers: Worker[] = [];
  try {
    await Promise.all(Array.from({ length: ranks }, (_, rank) => {
      const worker = new Worker(new URL("../../src/demo/rank_worker.ts", import.meta.url), { type: "module" });
      workers.push(worker);
      return new Promise<void>((resolve, reject) => {
        worker.addEventListener("message", ({ data }: MessageEvent<DemoMessage>) => {
          messages.push(data);
          if (data.type === "end" || data.type === "failed") resolve();
        });
        worker.addEventListener("error", (event) => {
          event.preventDefault();
          reject(new Error(event.message));
        });
        worker.postMessage({ settings, rank, text, world, otherWorld, pace: pace.words, sampleTokens: 4 });
      });
    }));
  } finally {
    for (const worker of workers) worker.terminate();
  }
  return messages;
}

/** Loss and gradient norm of each step, on a rank. */
export function lossesOf(messages: readonly DemoMessage[], rank = 0): readonly (readonly [number, number])[] {
  return messages.flatMap((message) =>
    message.type === "step" && message.rank === rank ? [[message.step.loss, message.step.gradNorm] as const] : []
  );
}
