/**
 * Presets of the trainer's keys, from Accelerate's file, Transformers' `fsdp` and `fsdp_config`, or its `DistributedConfig`.
 *
 * @module
 */
import {
  type ForeignConfig,
  type ForeignSource,
  readAccelerateConfig,
  readDistributedConfig,
  readFsdpConfig,
} from "../accelerate/read.ts";
import type { ConfigFile } from "../config/file.ts";
import type { ResolveOptions } from "../config/resolve.ts";
import { processEnvironment } from "../runtime/env.ts";
import { type HuggingFaceConfig, huggingFaceSection } from "./hugging_face_config.ts";

/**
 * Reads presets for `resolveConfig`.
 *
 * @param own the script's own settings, used if neither flags nor a file name a configuration
 * @param notices receives lines for the user about the presets
 */
export function foreignPresets(own: HuggingFaceConfig, notices: string[]): NonNullable<ResolveOptions["presets"]> {
  return async (given) => {
    const parsed = huggingFaceSection.schema.safeParse(
      Object.fromEntries(
        Object.entries(given).filter(([name]) => Object.hasOwn(huggingFaceSection.schema.shape, name)),
      ),
    );
    if (!parsed.success) return NOTHING; // the resolver reports the problem
    const isAsked = Object.values(parsed.data).some((value) => value !== undefined);
    const { accelerateConfig, fsdp, fsdpConfig, distributedConfig } = isAsked ? parsed.data : ownKeys(own);
    if (accelerateConfig !== undefined && (fsdp !== undefined || fsdpConfig !== undefined)) {
      return refused(
        "accelerateConfig",
        "one configuration",
        "fsdp or fsdpConfig as well: Accelerate's file has all of it",
      );
    }
    if (distributedConfig !== undefined && [accelerateConfig, fsdp, fsdpConfig].some((other) => other !== undefined)) {
      return refused("distributedConfig", "one configuration", "accelerateConfig, fsdp or fsdpConfig as well");
    }
    if (fsdp === false && fsdpConfig !== undefined) return refused("fsdpConfig", "fsdp: true", "fsdp: false");
    const config = distributedConfig === undefined
      ? await readForeign(accelerateConfig, fsdp, fsdpConfig)
      : await readDistributedConfig(distributedConfig);
    notices.push(...config?.notices ?? []);
    return config ?? NOTHING;
  };
}

const NOTHING: ConfigFile = { values: {}, places: new Map(), problems: [] };

function refused(path: string, expected: string, got: string): ConfigFile {
  return { ...NOTHING, problems: [{ path, expected, got }] };
}

/** The script's own settings, else the file that the launcher was given. */
function ownKeys(own: HuggingFaceConfig): HuggingFaceConfig {
  if (Object.values(own).some((value) => value !== undefined)) return own;
  return { accelerateConfig: processEnvironment().text("FULLYSHARD_ACCELERATE_CONFIG") };
}

async function readForeign(
  accelerateConfig: ForeignSource | undefined,
  fsdp: boolean | string | undefined,
  fsdpConfig: ForeignSource | undefined,
): Promise<ForeignConfig | undefined> {
  if (accelerateConfig !== undefined) return await readAccelerateConfig(accelerateConfig);
  if (fsdp === undefined && fsdpConfig === undefined) return undefined;
  return await readFsdpConfig(fsdpConfig ?? {}, fsdp);
}
