/**
 * Keys that name configurations of Accelerate and transformers, which are read as presets of this library's keys.
 *
 * @module
 */
import * as z from "zod";
import { type Section, section } from "../config/section.ts";
import { path } from "./config_values.ts";

/**
 * Configurations of Accelerate and transformers, read as presets.
 *
 * @internal
 */
export interface HuggingFaceConfig {
  readonly accelerateConfig?: string | undefined;
  readonly fsdp?: boolean | string | undefined;
  readonly fsdpConfig?: string | Readonly<Record<string, unknown>> | undefined;
  readonly distributedConfig?: string | Readonly<Record<string, unknown>> | undefined;
}

/** Keys of these configurations. */
export const huggingFaceSection: Section<HuggingFaceConfig> = section(
  "accelerate",
  z.strictObject({
    accelerateConfig: path.optional().describe(
      "Accelerate's YAML or JSON file; flags and the file of --config win",
    ),
    fsdp: z.union([z.boolean(), z.string()]).optional().describe(
      "As in Transformers: true, or options such as 'full_shard auto_wrap'; false replicates",
    ),
    fsdpConfig: z.union([z.string(), z.record(z.string(), z.unknown())]).optional().describe(
      "Transformers' fsdp_config as a JSON or YAML file, or its contents",
    ),
    distributedConfig: z.union([z.string(), z.record(z.string(), z.unknown())]).optional().describe(
      "Transformers' DistributedConfig as a JSON or YAML file, or its contents",
    ),
  }),
);
