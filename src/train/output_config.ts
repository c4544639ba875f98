/**
 * The keys of a run's output: folder, checkpoints, trackers, the sample.
 *
 * @module
 */
import * as z from "zod";
import { type Section, section } from "../config/section.ts";
import { type TrackerName, TRACKERS } from "../trackers/open.ts";
import { count, path, size } from "./config_values.ts";

/**
 * Output of the run.
 *
 * @internal
 */
export interface OutputConfig {
  readonly out: string;
  readonly resume?: string | undefined;
  readonly overwrite: boolean;
  readonly setAside: boolean;
  readonly saveEvery: number;
  readonly keepLast: number;
  readonly asyncSave: boolean;
  readonly stateDictType: "sharded" | "full";
  readonly logEvery: number;
  readonly reportTo: readonly TrackerName[];
  readonly runName?: string | undefined;
  readonly report: boolean;
  readonly live: boolean;
  readonly livePort: number;
  readonly sampleTokens: number;
  readonly trace?: string | undefined;
  readonly prompt?: string | undefined;
}

/** Output keys. */
export const outputSection: Section<OutputConfig> = section(
  "output",
  z.strictObject({
    out: path.default("runs/train").describe("Folder for metrics, checkpoints and the model").meta({
      otherNames: ["output-dir", "output", "save-dir"],
    }),
    resume: path.optional().describe(
      "Checkpoint to resume from; 'auto' takes the newest complete one in the output folder",
    ),
    overwrite: z.boolean().default(false).describe(
      "Replace another run's metrics and model in the output folder",
    ).meta({ otherNames: ["overwrite-output-dir"] }),
    setAside: z.boolean().default(false).describe(
      "Move another run's output, with its checkpoints, to a new folder beside the output folder",
    ),
    saveEvery: count.default(0).describe("Save a checkpoint every n steps; 0 saves none").meta({
      otherNames: ["save-steps", "save-interval"],
    }),
    keepLast: size.default(3).describe(
      "Newest checkpoints to keep; the best one and the one resumed from are always kept",
    ).meta({ otherNames: ["save-total-limit"] }),
    asyncSave: z.boolean().default(false).describe(
      "Write checkpoints while training goes on, from a copy in memory (the size of weights and optimizer states)",
    ).meta({ otherNames: ["async-mode", "async-checkpoint"] }),
    stateDictType: z.enum(["sharded", "full"]).default("sharded").describe(
      "Contents of a checkpoint: sharded: shards to resume from; full: a Hugging Face model as well",
    ).meta({ otherNames: ["fsdp-state-dict-type"] }),
    logEvery: size.default(10).describe("Print a line every n steps").meta({
      otherNames: ["logging-steps", "log-interval"],
    }),
    reportTo: z.array(z.enum(TRACKERS)).default([]).describe(
      "Trackers that show the metrics besides metrics.jsonl: tensorboard writes files of events; mlflow sends to " +
        "MLFLOW_TRACKING_URI; wandb to W&B, by WANDB_API_KEY",
    ),
    runName: z.string().min(1).optional().describe("Name of the run at trackers (default: the output folder's)"),
    report: z.boolean().default(true).describe(
      "Write report.html, a page of the run's numbers, at each save and at the end",
    ),
    live: z.boolean().default(false).describe(
      "Serve a live page of the run on localhost; '--live 8080' chooses the port",
    ),
    livePort: count.max(65535).default(0).describe("Port of the live page; 0 takes a free one"),
    sampleTokens: count.default(64).describe("Tokens of the sample printed at the end; 0 prints none"),
    trace: path.regex(/^(?!.*\.json$)/, "a folder; 'fullyshard trace' makes a file of it").optional().describe(
      "Folder for traces of units, calls and kernels; 'fullyshard trace' merges them into a file for Perfetto",
    ).meta({ otherNames: ["profile", "profile-dir", "torch-profiler"] }),
    prompt: z.string().optional().describe("Prompt of the sample (default: a beginning of the data)"),
  }),
);
