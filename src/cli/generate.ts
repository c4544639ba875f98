/**
 * `fullyshard generate`: a model continues texts. Ctrl-C stops the text that is drawn, and ends the program.
 *
 * @module
 */
import process from "node:process";
import * as z from "zod";
import { type Flag, helpAsked } from "../config/flags.ts";
import { configHelp } from "../config/resolve.ts";
import { flagsOf } from "../config/schema.ts";
import { type Section, section } from "../config/section.ts";
import { findBeginOfText, requireBeginOfText } from "../data/begin_of_text.ts";
import { loadTokenizer, type Tokenizer } from "../data/tokenizer.ts";
import { CPU_MATH, type CpuMath } from "../device/cpu.ts";
import { ConfigError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { terminal } from "../runtime/terminal.ts";
import { requireVocabulary } from "../train/checks.ts";
import { path, size } from "../train/config_values.ts";
import { openModel } from "../train/open_model.ts";
import { launch } from "../train/run.ts";
import { averagesKey, resolveWithModel } from "./places.ts";
import { endIds, textParts } from "./text_parts.ts";

/** Texts, and how they are continued. */
interface GenerateConfig {
  readonly model?: string | undefined;
  readonly prompt: readonly string[];
  readonly adapter?: string | undefined;
  readonly averages: boolean;
  readonly tokenizer?: string | undefined;
  readonly addBosToken: boolean;
  readonly maxNewTokens: number;
  readonly temperature: number;
  readonly seed: number;
  readonly cpuMath: CpuMath;
  readonly threads?: number | undefined;
  readonly json: boolean;
}

const SECTIONS: readonly [Section<GenerateConfig>] = [section(
  "generate",
  z.strictObject({
    model: path.optional().describe(
      "Hugging Face folder, name in its cache, or checkpoint, as an argument or by --model",
    ).meta({ otherNames: ["model-name-or-path"] }),
    prompt: z.array(z.string()).default([]).describe("Text that is continued; repeat the flag for several").meta({
      otherNames: ["text"],
    }),
    adapter: path.optional().describe("Folder of a LoRA adapter of PEFT, beside the model that it is for").meta({
      otherNames: ["lora", "adapter-name-or-path"],
    }),
    averages: averagesKey,
    tokenizer: path.optional().describe("tokenizer.json, or a folder that holds one (default: the model's)"),
    addBosToken: z.boolean().default(false).describe("Begin every text with the beginning-of-text token").meta({
      otherNames: ["add-bos", "bos"],
    }),
    maxNewTokens: size.default(128).describe("Most tokens behind a text").meta({ otherNames: ["max-tokens"] }),
    temperature: z.number().nonnegative().default(0.8).describe(
      "Divisor of the logits before a token is drawn; 0 takes the likeliest token",
    ),
    seed: z.int().nonnegative().default(0).describe("Seed of the drawn numbers, the same for each text"),
    cpuMath: z.enum(CPU_MATH).default("auto").describe(
      "CPU kernels: native, wasm, wasm-relaxed; auto: native where it works, else wasm-relaxed",
    ),
    threads: size.optional().describe("Threads that compute (default: the host's cores, and one with WASM)"),
    json: z.boolean().default(false).describe("Print one JSON object a text: prompt, text, and the ids of its tokens"),
  }),
)];

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => flagsOf(SECTIONS);

/**
 * Continues texts, one behind the other, and prints each with what follows it.
 *
 * @param argv the arguments after `generate`
 * @returns the exit code
 * @throws {ConfigError} for arguments that are wrong, or a text that the model has no room behind
 * @throws {FileError} {@link CheckpointError} if the model cannot be read
 */
export async function generate(argv: readonly string[]): Promise<number> {
  if (helpAsked(argv)) {
    process.stdout.write(`${await configHelp(SECTIONS, "fullyshard generate <model> --prompt <text> [flags]")}\n`);
    return 0;
  }
  const { folder, ...config } = await resolveWithModel(SECTIONS, argv);
  if (config.prompt.length === 0) {
    throw new ConfigError([{ path: "prompt", expected: "a text to continue, by '--prompt'", got: "nothing" }]);
  }
  const { adapter, averages, cpuMath, threads, json, seed, temperature } = config;
  await using run = await launch({ cpuMath, ...threads === undefined ? {} : { threads } });
  const model = await openModel(run, folder, { averages, ...adapter === undefined ? {} : { adapter } });
  const tokenizer = await loadTokenizer(config.tokenizer ?? model.files?.folder ?? folder);
  requireVocabulary(tokenizer, model);
  const prompts = await encodePrompts(config, model, tokenizer);
  await model.load();
  const { write } = terminal("stdout");
  for (const { prompt, ids, room } of prompts) {
    const options = {
      maxNewTokens: Math.min(config.maxNewTokens, room),
      temperature,
      seed,
      eosId: endIds(model, tokenizer),
    };
    const parts = textParts({ model, tokenizer }, ids, options, () => false);
    if (!json) write(prompt);
    let text = "";
    for (;;) {
      const part = await parts.next();
      if (part.done === true) {
        write(json ? `${JSON.stringify({ prompt, text, tokens: part.value })}\n` : "\n");
        break;
      }
      text += part.value;
      if (!json) write(part.value);
    }
  }
  return 0;
}

/** The texts with their ids, and the positions that the model has behind each. */
async function encodePrompts({ prompt: texts, addBosToken }: GenerateConfig, model: CausalLm, tokenizer: Tokenizer) {
  const begin = await findBeginOfText(tokenizer);
  if (addBosToken) requireBeginOfText(begin, tokenizer);
  return texts.map((prompt, i) => {
    const ids = [...addBosToken && begin !== undefined ? [begin] : [], ...tokenizer.encode(prompt)];
    const room = model.maxPositions - ids.length;
    if (ids.length > 0 && room > 0) return { prompt, ids, room };
    const expected = `from 1 to ${model.maxPositions - 1} tokens, as the model has ${model.maxPositions} positions`;
    throw new ConfigError([{ path: `prompt.${i}`, expected, got: `${ids.length} tokens` }]);
  });
}
