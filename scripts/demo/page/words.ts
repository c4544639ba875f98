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
  const part = ranks === 1 ? "all of it" : `a ${ranks === 2 ? "half" : `part of ${ranks}`}`;
  switch (activity) {
    case "gather":
      return `All-gather of ${name}${
        isBackward ? ", for the backward" : ""
      }: each rank gives ${part}, and all of them get the whole.`;
    case "forward":
      return `Forward of ${name}: every rank computes it on its own texts.`;
    case "backward":
      return `Backward of ${name}${
        checkpointing ? ", after its forward once more" : ""
      }: every rank gets the gradients for its own texts.`;
    case "free":
      return `Free of ${name}: the parts of the other ranks are dropped.`;
    case "update":
      return `Optimizer, ${name}: each rank changes its own part.`;
    case "reduce":
      if (call === "all-reduce loss") return "All-reduce of the loss: the ranks add up their losses to know the mean.";
      if (call === "all-reduce gradient norm") {
        return "All-reduce of the gradient's norm: each rank knows its parts only, and the sum of all decides if gradients are scaled down.";
      }
      return strategy === "ddp"
        ? "All-reduce: the gradients of all ranks are added up, and every rank gets all of the sum."
        : `Reduce-scatter of ${name}: gradients are added over all ranks, and each rank keeps the sum of its own part.`;
  }
}
