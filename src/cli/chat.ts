/**
 * `fullyshard chat`: a conversation with a model on the terminal. Ctrl-C stops an answer; two in turn at the prompt end the program.
 *
 * @module
 */
import process from "node:process";
import { createInterface } from "node:readline";
import * as z from "zod";
import { type Flag, helpAsked } from "../config/flags.ts";
import { configHelp } from "../config/resolve.ts";
import { flagsOf } from "../config/schema.ts";
import { type Section, section } from "../config/section.ts";
import { loadChatTemplates } from "../data/chat/load_template.ts";
import { loadTokenizer } from "../data/tokenizer.ts";
import { CPU_MATH, type CpuMath } from "../device/cpu.ts";
import { ArgumentError, ConfigError } from "../errors.ts";
import { SAME_SIGNAL_MS } from "../runtime/signals.ts";
import { terminal } from "../runtime/terminal.ts";
import { requireVocabulary } from "../train/checks.ts";
import { path, size } from "../train/config_values.ts";
import { averagesKey, resolveWithModel } from "./places.ts";
import { openModel } from "../train/open_model.ts";
import { launch } from "../train/run.ts";
import { Conversation } from "./conversation.ts";

/** A conversation. */
interface ChatConfig {
  readonly model?: string | undefined;
  readonly adapter?: string | undefined;
  readonly averages: boolean;
  readonly tokenizer?: string | undefined;
  readonly chatTemplate?: string | undefined;
  readonly system?: string | undefined;
  readonly maxNewTokens: number;
  readonly temperature: number;
  readonly seed: number;
  readonly cpuMath: CpuMath;
  readonly threads?: number | undefined;
}

const SECTIONS: readonly [Section<ChatConfig>] = [section(
  "chat",
  z.strictObject({
    model: path.optional().describe(
      "Hugging Face folder, name in its cache, or checkpoint, as an argument or by --model",
    )
      .meta({
        otherNames: ["model-name-or-path"],
      }),
    adapter: path.optional().describe("Folder of a LoRA adapter of PEFT, beside the model that it is for").meta({
      otherNames: ["lora", "adapter-name-or-path"],
    }),
    averages: averagesKey,
    tokenizer: path.optional().describe("tokenizer.json, or a folder that holds one (default: the model's)"),
    chatTemplate: path.optional().describe("Jinja file with the chat template (default: the tokenizer's)"),
    system: z.string().optional().describe("System prompt").meta({
      otherNames: ["system-prompt"],
    }),
    maxNewTokens: size.default(512).describe("Most tokens of an answer").meta({ otherNames: ["max-tokens"] }),
    temperature: z.number().nonnegative().default(0.8).describe(
      "Divisor of the logits before a token is drawn; 0 takes the likeliest token",
    ),
    seed: z.int().nonnegative().default(0).describe("Seed of the drawn numbers"),
    cpuMath: z.enum(CPU_MATH).default("auto").describe(
      "CPU kernels: native, wasm, wasm-relaxed; auto: native where it works, else wasm-relaxed",
    ),
    threads: size.optional().describe("Threads that compute (default: the host's cores, and one with WASM)"),
  }),
)];

const HELP = "/reset forgets the conversation, /exit ends it, Ctrl-C stops an answer";

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => flagsOf(SECTIONS);

/**
 * Talks with a model until `/exit`, the end of the input, or two Ctrl-C in turn at the prompt.
 *
 * @param argv the arguments after `chat`
 * @returns the exit code
 * @throws {ConfigError} for arguments that are wrong, or a tokenizer without a chat template
 * @throws {FileError} {@link CheckpointError} if the model cannot be read
 */
export async function chat(argv: readonly string[]): Promise<number> {
  if (helpAsked(argv)) {
    process.stdout.write(`${await configHelp(SECTIONS, "fullyshard chat <model> [flags]")}\n`);
    return 0;
  }
  const { folder, ...config } = await resolveWithModel(SECTIONS, argv);
  const { adapter, averages, cpuMath, threads, system } = config;
  await using run = await launch({ cpuMath, ...threads === undefined ? {} : { threads } });
  const model = await openModel(run, folder, { averages, ...adapter === undefined ? {} : { adapter } });
  const tokenizer = await loadTokenizer(config.tokenizer ?? model.files?.folder ?? folder);
  requireVocabulary(tokenizer, model);
  const templates = await loadChatTemplates(tokenizer.path, config.chatTemplate);
  if (templates === undefined) {
    const expected = "a chat template beside the tokenizer, or a file of Jinja named by '--chat-template'";
    throw new ConfigError([{ path: "chatTemplate", expected, got: `none beside '${tokenizer.path}'` }]);
  }
  await model.load();
  const { write } = terminal("stdout");
  await talk(new Conversation({ model, tokenizer, templates, system }), config, write);
  return 0;
}

async function talk(conversation: Conversation, config: ChatConfig, write: (text: string) => void): Promise<void> {
  // The terminal keeps its line editing, so Ctrl-C is a signal, also while tokens are computed.
  const lines = createInterface({ input: process.stdin, terminal: false });
  let [isAnswering, isInterrupted, isOver] = [false, false, false];
  let lastSignal = -Infinity;
  const onInterrupt = (): void => {
    // A terminal sends a Ctrl-C to this process and to the program that started it, which passes it on.
    const isSame = performance.now() - lastSignal < SAME_SIGNAL_MS;
    lastSignal = performance.now();
    if (isSame || isOver) return;
    if (isInterrupted && !isAnswering) {
      isOver = true;
      lines.close();
      return;
    }
    isInterrupted = true;
    if (!isAnswering) write("\n(Ctrl-C again, or /exit, ends the conversation)\n> ");
  };
  process.on("SIGINT", onInterrupt);
  try {
    write(`${HELP}\n> `);
    for await (const line of lines) {
      const said = line.trim();
      isInterrupted = false;
      if (said === "/exit" || isOver) break;
      if (said === "/reset") conversation.reset();
      else if (said.startsWith("/")) write(`There is no '${said}': ${HELP}\n`);
      else if (said !== "") {
        isAnswering = true;
        try {
          for await (const part of conversation.say(said, config, () => isInterrupted)) write(part);
        } catch (error) {
          if (!(error instanceof ArgumentError)) throw error;
          write(error.message);
        }
        // The Ctrl-C that stopped the answer does not count at the prompt, where a late copy of it may arrive.
        [isAnswering, isInterrupted] = [false, false];
        write("\n");
      }
      write("> ");
    }
    write("\n");
  } finally {
    // The listener stays: a late copy of the last Ctrl-C would end the process by the signal.
    isOver = true;
    lines.close();
    process.stdin.destroy();
  }
}
