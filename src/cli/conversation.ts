/**
 * A conversation with a model: what was said, and the tokens that the model continues.
 *
 * @module
 */
import type { ChatMessage } from "../data/chat/columns.ts";
import type { ChatTemplates } from "../data/chat/load_template.ts";
import type { Tokenizer } from "../data/tokenizer.ts";
import { ArgumentError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import type { GenerateOptions } from "../train/generate.ts";
import { endIds, textParts } from "./text_parts.ts";

/** The parts of a conversation that stay the same. */
export interface Speaker {
  readonly model: CausalLm;
  readonly tokenizer: Tokenizer;
  readonly templates: ChatTemplates;
  /** The system prompt. @default none */
  readonly system?: string | undefined;
}

/** The messages of a conversation; a model answers them. */
export class Conversation {
  readonly #speaker: Speaker;
  #messages: ChatMessage[] = [];
  #turns = 0;

  /** Begins with the system's message alone. */
  constructor(speaker: Speaker) {
    this.#speaker = speaker;
    this.reset();
  }

  /** Forgets all but the system's message. */
  reset(): void {
    const { system } = this.#speaker;
    this.#messages = system === undefined ? [] : [{ role: "system", content: system }];
  }

  /**
   * Says something and yields the parts of the answer's text as they are drawn. What was yielded before `stops` told true is kept as
   * the answer.
   *
   * @param options of the generation; the seed counts up by answer
   * @throws {ArgumentError} if the conversation fills the model's positions; what was said is then forgotten
   */
  async *say(
    content: string,
    { maxNewTokens, temperature, seed = 0 }: Pick<GenerateOptions, "maxNewTokens" | "temperature" | "seed">,
    stops: () => boolean,
  ): AsyncGenerator<string, undefined> {
    const { model, tokenizer, templates } = this.#speaker;
    const messages = [...this.#messages, { role: "user", content }];
    const prompt = tokenizer.encode(templates.pick(false).render({ messages, addGenerationPrompt: true }));
    const room = model.maxPositions - prompt.length;
    if (room < 1) {
      throw new ArgumentError(
        `The conversation has ${prompt.length} tokens with this message, and the model ${model.maxPositions} positions: begin anew ` +
          "with /reset, or say less",
      );
    }
    const options = {
      ...{ maxNewTokens: Math.min(maxNewTokens, room), seed: seed + this.#turns++ },
      ...temperature === undefined ? {} : { temperature },
      eosId: endIds(model, tokenizer),
    };
    const text = tokenizer.decode(yield* textParts({ model, tokenizer }, prompt, options, stops));
    this.#messages = [...messages, { role: "assistant", content: text }];
  }
}
