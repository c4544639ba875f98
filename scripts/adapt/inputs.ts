/**
 * The folder that a user begins with: a small Llama with a learned tokenizer and a chat template, chats, and an adapter that has
 * not been trained. All of it is the same in each run.
 *
 * @module
 */
import { copyFileSync, mkdirSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { addLora, bfloat16, launch, openModel, saveAdapter } from "../../mod.ts";

/** Paths of what {@link makeInputs} made. */
export interface Inputs {
  /** A folder of Hugging Face: model, tokenizer, template. */
  readonly base: string;
  /** A folder of PEFT. */
  readonly adapter: string;
  /** Chats to train on. */
  readonly chats: string;
  /** Chats that a model learned from before. */
  readonly earlier: string;
  /** Chats to evaluate on. */
  readonly held: string;
  /** Prompts with completions, as texts. */
  readonly prompts: string;
  /** Prompts with a chosen and a rejected answer, as chats. */
  readonly pairs: string;
  /** As many pairs as there are chats, each with a prompt of its own. */
  readonly manyPairs: string;
  /** Prompts with one answer each and a label, as chats. */
  readonly labels: string;
  /** The chats to train on, with rows that are wrong among them. */
  readonly mistakes: string;
}

/** Tokens of a sample at most: longer chats are cut. */
export const SEQUENCE_LENGTH = 128;

/** Chats to train on. */
export const NUM_CHATS = 48;

/** Pairs of answers. */
export const NUM_PAIRS = 8;

/** Options of the adapter. */
const LORA = { r: 4, loraAlpha: 16 } as const;

const SIZES = {
  model_type: "llama",
  vocab_size: 448,
  hidden_size: 64,
  intermediate_size: 160,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  max_position_embeddings: 512,
  rms_norm_eps: 1e-6,
  rope_theta: 10000,
  initializer_range: 0.05,
  tie_word_embeddings: false,
  bos_token_id: 0,
  eos_token_id: 1,
} as const;

const fixture = (name: string): string => fileURLToPath(new URL(`../../tests/fixtures/chat/${name}`, import.meta.url));

/** A sentence of a few words, the same for the same number. */
function sentence(number: number, words: number): string {
  const all = ["shard", "gather", "the", "rank", "of", "a", "tensor", "warm", "river", "Köln", "2 + 2", "slow"];
  return Array.from({ length: words }, (_, i) => all[(number * 7 + i * i * 5 + i * number) % all.length]).join(" ");
}

/**
 * A chat of one to three turns, unlike all others.
 *
 * @param rule how answers follow from numbers. A model that has learned one rule by heart is wrong about another.
 */
export function chatOf(number: number, rule = 3): { readonly messages: readonly Readonly<Record<string, string>>[] } {
  const system = number % 4 === 0 ? [{ role: "system", content: `Answer ${sentence(number, 3)}.` }] : [];
  const turns = Array.from({ length: 1 + number % 3 }, (_, turn) => [
    { role: "user", content: `${number}.${turn} ${sentence(number + turn, 2 + number % 4)}?` },
    { role: "assistant", content: `${sentence(number * rule + turn, 3 + number % 6)}.${turn === 1 ? "\n" : ""}` },
  ]);
  return { messages: [...system, ...turns.flat()] };
}

/**
 * A question with a longer and a shorter answer, of which every other pair has the longer one as chosen.
 *
 * @param before what the question begins with
 */
function pairOf(number: number, before = ""): Readonly<Record<string, unknown>> {
  const says = (role: string, content: string) => [{ role, content }];
  const answers = [says("assistant", `${sentence(number, 6)}.`), says("assistant", sentence(number + 3, 2))];
  const [chosen, rejected] = number % 2 === 0 ? answers : answers.toReversed();
  return { prompt: says("user", `${before}${sentence(number + 1, 3)}?`), chosen, rejected };
}

/** Lines that a run refuses, each with what it is before. */
export const MISTAKES: ReadonlyMap<number, string> = new Map([
  [7, '{"messages": [{"role": "user", "content": "nobody answers"}]}'],
  [19, '{"messages": [{"role": "user", "content": "cut o'],
  [30, '{"chat": []}'],
]);

/** Options of {@link makeBase}. */
interface BaseOptions {
  readonly sizes?: Readonly<Record<string, unknown>>;
  /** The type of the weights in the file. @default float32 */
  readonly dtype?: "float32" | "bfloat16";
  /** Folder of the adapter. @default none is made */
  readonly adapter?: string;
}

/** Makes a model's folder with tokenizer and template, and an adapter whose products are zero. */
export async function makeBase(folder: string, { sizes = SIZES, dtype, adapter }: BaseOptions = {}): Promise<void> {
  await using run = await launch();
  const made = await openModel(run, sizes, { seed: 3 });
  await made.load();
  await made.save(folder, dtype === "bfloat16" ? { dtype: bfloat16 } : {});
  for (const name of ["tokenizer.json", "tokenizer_config.json"]) {
    copyFileSync(fixture(`bytes/${name}`), `${folder}/${name}`);
  }
  copyFileSync(fixture("templates/generation.jinja"), `${folder}/chat_template.jinja`);
  if (adapter === undefined) return;
  const model = await openModel(run, folder, { seed: 5 });
  addLora(model, LORA);
  await model.load();
  await saveAdapter(model, adapter, run.group);
}

/** Makes all inputs in a folder. */
export async function makeInputs(folder: string): Promise<Inputs> {
  mkdirSync(folder, { recursive: true });
  const write = (name: string, rows: readonly unknown[]): string => {
    const text = rows.map((row) => `${typeof row === "string" ? row : JSON.stringify(row)}\n`).join("");
    writeFileSync(`${folder}/${name}`, text);
    return `${folder}/${name}`;
  };
  const chats = Array.from({ length: NUM_CHATS }, (_, i) => chatOf(i));
  const withMistakes: unknown[] = [...chats];
  for (const [line, text] of MISTAKES) withMistakes.splice(line - 1, 0, text);
  const inputs: Inputs = {
    base: `${folder}/base`,
    adapter: `${folder}/adapter`,
    chats: write("chats.jsonl", chats),
    earlier: write("earlier.jsonl", Array.from({ length: 24 }, (_, i) => chatOf(2000 + i, 7))),
    held: write("held.jsonl", Array.from({ length: 10 }, (_, i) => chatOf(1000 + i, 5))),
    prompts: write(
      "prompts.jsonl",
      Array.from({ length: 16 }, (_, i) => ({ prompt: `${sentence(i, 4)} =`, completion: ` ${sentence(i + 1, 2)}` })),
    ),
    pairs: write("pairs.jsonl", Array.from({ length: NUM_PAIRS }, (_, i) => pairOf(i))),
    manyPairs: write("many_pairs.jsonl", Array.from({ length: NUM_CHATS }, (_, i) => pairOf(i, `${i}. `))),
    labels: write(
      "labels.jsonl",
      Array.from({ length: NUM_PAIRS }, (_, i) => {
        const { prompt, chosen, rejected } = pairOf(i);
        return { prompt, completion: i % 3 === 0 ? rejected : chosen, label: i % 3 !== 0 };
      }),
    ),
    mistakes: write("mistakes.jsonl", withMistakes),
  };
  await makeBase(inputs.base, { adapter: inputs.adapter });
  return inputs;
}
