/**
 * A moment of a training in a sentence.
 *
 * @module
 */
import type { Moment } from "../../../src/demo/scene.ts";
import type { DemoSettings } from "../../../src/demo/settings.ts";
import { shortName } from "./ranks_view.ts";

/** The paragraph of the page that explains a moment. */
export function storyOf({ activity }: Moment, { strategy }: DemoSettings): string {
  return strategy === "ddp" && activity === "reduce" ? "ddp" : activity;
}

/** The sentence of a moment. */
export function sentenceOf({ activity, unit, isBackward, call, isDone }: Moment, settings: DemoSettings): string {
  const { ranks, strategy, checkpointing } = settings;
  const name = shortName(unit);
  switch (activity) {
    case "gather":
      return ranks === 1
        ? `All-gather of ${name}: with one rank there is nothing to send.`
        : `All-gather of ${name}${
          isBackward ? ", for the backward" : ""
        }: each rank has sent its shard to all others, so all of them hold the whole unit.`;
    case "forward":
      return `Forward of ${name}: every rank computes it on its own samples.`;
    case "backward":
      if (isDone === true) {
        return `Backward of ${name} is done: every rank has all of the gradients, but of its own samples only.`;
      }
      return `Backward of ${name}: ${
        checkpointing && name.startsWith("block") ? "its forward is computed again, then " : ""
      }every rank computes gradients of the whole unit, for its own samples.`;
    case "free":
      return `Free of ${name}: each rank has dropped the shards of the others from its memory, and keeps its own.`;
    case "update":
      return `Optimizer step of ${name}: each rank has changed the parameters of its own shard.`;
    case "reduce":
      if (call === "all-reduce loss") {
        return "All-reduce of the loss: the ranks have added up their losses, so that each knows the mean.";
      }
      if (call === "all-reduce gradient norm") {
        return "All-reduce of the norm: the ranks have added up the sizes of their gradients. If the total is too large for a safe step, all scale theirs down.";
      }
      return strategy === "ddp"
        ? "All-reduce: every rank has the mean of all ranks' gradients, by which it changes its copy of the model."
        : `Reduce-scatter of ${name}: each rank has the mean of all ranks' gradients, for its own shard alone.`;
  }
}
