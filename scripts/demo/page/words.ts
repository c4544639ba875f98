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
export function sentenceOf({ activity, unit, isBackward, call }: Moment, settings: DemoSettings): string {
  const { ranks, strategy, checkpointing } = settings;
  const name = shortName(unit);
  switch (activity) {
    case "gather":
      return ranks === 1
        ? `All-gather of ${name}: with one rank there is nothing to send.`
        : `All-gather of ${name}${
          isBackward ? ", for the backward" : ""
        }: each rank sends its shard to all others, so all of them get the whole unit.`;
    case "forward":
      return `Forward of ${name}: every rank computes it on its own samples.`;
    case "backward":
      return `Backward of ${name}${
        checkpointing ? ", after its forward was computed again" : ""
      }: every rank gets gradients of the whole unit, for its own samples.`;
    case "free":
      return `Free of ${name}: each rank drops the shards of the others from its memory, and keeps its own.`;
    case "update":
      return strategy === "ddp"
        ? `Optimizer step of ${name}: every rank changes its copy, all in the same way.`
        : `Optimizer step of ${name}: each rank changes the parameters of its own shard.`;
    case "reduce":
      if (call === "all-reduce loss") {
        return "All-reduce of the loss: the ranks add up their losses, so that each knows the mean.";
      }
      if (call === "all-reduce gradient norm") {
        return "All-reduce of the norm: the ranks add up the sizes of their gradients. If the total is too large for a safe step, all scale theirs down.";
      }
      return strategy === "ddp"
        ? "All-reduce: every rank gets the mean of all ranks' gradients."
        : `Reduce-scatter of ${name}: each rank gets the mean of all ranks' gradients, for its own shard alone.`;
  }
}
