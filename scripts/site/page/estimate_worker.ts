/**
 * The Worker of the page of settings: estimates a step by the code of `fullyshard estimate`.
 *
 * @module
 */
/// <reference lib="webworker" />
import { estimateInput, estimateOf } from "../../../src/cli/estimate_of.ts";
import { estimateJson, estimateLines } from "../../../src/cli/estimate_text.ts";
import { Logger } from "../../../src/runtime/log.ts";
import type { Keys } from "./estimate_settings.ts";
import type { ModelConfig } from "./models.ts";

/** A question of the page. */
export interface EstimateAsked {
  readonly number: number;
  readonly keys: Keys;
  readonly model: ModelConfig;
}

/** The Worker's answer to it. */
export type EstimateAnswer =
  & { readonly number: number }
  & (
    | {
      readonly peakBytes: number;
      readonly hostBytes: number;
      readonly received: number;
      readonly lines: readonly string[];
      /** The line that `--json` prints. */
      readonly json: string;
    }
    | { readonly problem: string }
  );

/** A page has no lines for notices: what matters of them is in the figures. */
const log = new Logger({ sink: () => {} });

addEventListener("message", async ({ data }: MessageEvent<EstimateAsked>) => {
  postMessage(await answerTo(data));
});

async function answerTo({ number, keys, model }: EstimateAsked): Promise<EstimateAnswer> {
  try {
    const estimate = await estimateOf(estimateInput(keys), { source: model, log });
    const { peakBytes, offloaded, bytesCommunicated } = estimate.step;
    return {
      number,
      peakBytes,
      hostBytes: offloaded.peakBytes,
      received: bytesCommunicated,
      lines: estimateLines(estimate),
      json: JSON.stringify(estimateJson(estimate)),
    };
  } catch (error) {
    return { number, problem: error instanceof Error ? error.message : String(error) };
  }
}
