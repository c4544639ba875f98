/**
 * The keys of `fullyshard estimate`.
 *
 * @module
 */
import * as z from "zod";
import type { Packing } from "../data/samples/rows.ts";
import { type Section, section } from "../config/section.ts";
import { DEVICES } from "../device/registry.ts";
import { type AdapterConfig, adapterSection } from "../train/adapter_config.ts";
import { type AxesConfig, axesSection } from "../train/axes_config.ts";
import {
  type DataConfig,
  dataSection,
  type ParallelConfig,
  parallelSection,
  type TrainConfig,
  trainSection,
} from "../train/config.ts";
import { path } from "../train/config_values.ts";
import { type HuggingFaceConfig, huggingFaceSection } from "../train/hugging_face_config.ts";
import { type OptimizerConfig, optimizerSection } from "../train/optimizer_config.ts";
import { outputSection } from "../train/output_config.ts";
import { type PreferenceConfig, preferenceSection } from "../train/preference_config.ts";

const size = z.int().positive();
/** The defaults of a training. */
export const USUAL: DataConfig & TrainConfig & OptimizerConfig = {
  ...dataSection.schema.parse({}),
  ...trainSection.schema.parse({}),
  ...optimizerSection.schema.parse({}),
};

/** Values of the keys that an estimate has besides those of a training. */
export interface EstimateConfig {
  readonly model: string;
  readonly nproc: number;
  readonly rank?: number | undefined;
  readonly batch: number;
  readonly seq: number;
  readonly packing?: Packing | undefined;
  readonly microBatches: number;
  readonly device?: string | undefined;
  readonly registersMemory: boolean;
  readonly ranksPerHost?: number | undefined;
  readonly tflops?: number | undefined;
  readonly bandwidth?: number | undefined;
  readonly hostBandwidth?: number | undefined;
  readonly optimizer: string;
  readonly emaDecay?: number | undefined;
  readonly neftuneNoiseAlpha?: number | undefined;
  readonly asyncSave: boolean;
  readonly json: boolean;
}

const estimateSection: Section<EstimateConfig> = section(
  "estimate",
  z.strictObject({
    model: path.describe("Hugging Face folder, name in its cache, or a config.json; weights are not read"),
    nproc: size.describe("Ranks"),
    rank: z.int().nonnegative().optional().describe(
      "Rank that is estimated (default: 0; with ppSize a rank of the stage that needs most memory)",
    ),
    batch: size.default(1).describe("Samples of a micro-batch on each rank").meta({ otherNames: ["batch-size"] }),
    seq: size.default(USUAL.sequenceLength).describe("Tokens of a sample").meta({
      otherNames: ["seq-len", "sequence-length"],
    }),
    packing: dataSection.schema.shape.packing,
    microBatches: size.default(USUAL.microBatches).describe("Micro-batches of a step on each rank"),
    device: z.enum(DEVICES).optional().describe(
      "Device to estimate for (cuda needs no GPU here; default: cpu, or cuda with cudaGraphs or attention cudnn)",
    ),
    registersMemory: z.boolean().default(true).describe(
      "With cuda: gather into memory registered with NCCL, as NCCL from 2.27 on does unless NCCL_WIN_ENABLE is 0",
    ),
    ranksPerHost: size.optional().describe("Ranks per host, for mesh hybrid (default: LOCAL_WORLD_SIZE, else all)"),
    tflops: z.number().positive().optional().describe("Compute speed of a rank in TFLOP/s, to estimate a step's time"),
    bandwidth: z.number().positive().optional().describe(
      "GB/s that a rank receives from other hosts, to estimate a step's time",
    ),
    hostBandwidth: z.number().positive().optional().describe(
      "GB/s that a rank receives from ranks of its host (default: bandwidth)",
    ),
    optimizer: optimizerSection.schema.shape.optimizer,
    emaDecay: optimizerSection.schema.shape.emaDecay,
    neftuneNoiseAlpha: trainSection.schema.shape.neftuneNoiseAlpha,
    asyncSave: outputSection.schema.shape.asyncSave,
    json: z.boolean().default(false).describe("Print one JSON object"),
  }),
);

/** All keys of an estimate. */
export const ESTIMATE_SECTIONS: readonly [
  Section<EstimateConfig>,
  Section<AdapterConfig>,
  Section<PreferenceConfig>,
  Section<ParallelConfig>,
  Section<AxesConfig>,
  Section<HuggingFaceConfig>,
] = [
  estimateSection,
  adapterSection,
  preferenceSection,
  parallelSection,
  axesSection,
  huggingFaceSection,
];
