/**
 * Chat templates: Jinja that makes text of messages, run as `transformers` runs it, with the spans of text that lie between
 * `{% generation %}` and `{% endgeneration %}`.
 *
 * @module
 */
import { Environment, parse } from "@huggingface/jinja";
import { CheckpointError, UnsupportedError } from "../../errors.ts";
import type { JsonObject } from "../../json.ts";
import type { ChatMessage } from "./columns.ts";
import { TemplateFailure } from "./failure.ts";
import { PythonInterpreter } from "./interpreter.ts";
import { FUNCTIONS, tokensOf } from "./python_jinja.ts";
import { strftime } from "./strftime.ts";

/** The inputs of a template. */
export interface TemplateInputs {
  readonly messages: readonly ChatMessage[];
  readonly tools?: readonly JsonObject[] | undefined;
  /** True if the text ends with the beginning of an assistant's turn. @default false */
  readonly addGenerationPrompt?: boolean;
  /** Other variables that the template reads; they count before special tokens of the same name. */
  readonly variables?: JsonObject;
}

/** A part of a text, in UTF-16 units. */
export interface TextSpan {
  readonly start: number;
  readonly end: number;
}

/** A text with the parts that an assistant has written. */
export interface MarkedText {
  readonly text: string;
  readonly spans: readonly TextSpan[];
}

/** A tag of `transformers`, which Jinja does not have. */
const TAG = /\{%([-+]?)\s*(end)?generation\s*(-?)%\}/g;
/** Variables that stand where tags were: of these names no template has any. */
const MARKS = ["__fullyshard_begin", "__fullyshard_end"] as const;
/** First of the pairs of private characters that mark spans. */
const FIRST_MARK = 0xe000;
const LAST_MARK = 0xf8ff;

/** A template of a file. */
export class ChatTemplate {
  /** The file that holds it. */
  readonly file: string;
  /** Its Jinja text. */
  readonly source: string;
  /** True if the template marks the text that an assistant writes. */
  readonly marksAssistant: boolean;
  /** Special tokens by name. */
  readonly tokens: Readonly<Record<string, string>>;
  readonly #parsed: ReturnType<typeof parse>;

  /**
   * @param tokens special tokens by name, e.g. `bos_token`
   * @throws {CheckpointError} if it is not Jinja
   * @throws {UnsupportedError} if it leaves a loop in the middle of it
   */
  constructor(source: string, file: string, tokens: Readonly<Record<string, string>>) {
    this.file = file;
    this.source = source;
    this.tokens = tokens;
    const marked = source.replace(TAG, (_, before: string, end: string | undefined, after: string) => {
      // The mark lies inside a block, so that blanks around the tag are left out as they are around the tag.
      return `{%${before} if true %}{{ ${MARKS[end === undefined ? 0 : 1]} }}{% endif ${after}%}`;
    });
    this.marksAssistant = marked !== source;
    // As the library loses what an iteration wrote before it is left.
    const jump = /\{%[-+]?\s*(break|continue)\s*[-+]?%\}/.exec(source)?.[1];
    if (jump !== undefined) {
      throw new UnsupportedError(
        `${file}: a chat template with {% ${jump} %} is not supported, as a loop may not be left in the middle: write it with ` +
          "{% if %} in a file of your own, and name that by '--chat-template' (chatTemplate)",
      );
    }
    try {
      this.#parsed = parse(tokensOf(marked));
    } catch (cause) {
      const detail = cause instanceof Error ? cause.message : String(cause);
      throw new CheckpointError(file, `The chat template must be Jinja: ${detail}`, undefined, { cause });
    }
  }

  /**
   * The text of messages.
   *
   * @throws {TemplateFailure} with what the template says, or what fails in it
   */
  render(inputs: TemplateInputs): string {
    return this.#run(inputs, ["", ""]);
  }

  /**
   * The text of messages, and the parts of it that an assistant writes by the template's own tags.
   *
   * @throws {TemplateFailure} as {@link render}; if the template changes what lies between its tags afterwards, so that no place in
   * the text is it
   */
  renderMarked(inputs: TemplateInputs): MarkedText {
    const text = this.render(inputs);
    let first = FIRST_MARK;
    while (text.includes(String.fromCharCode(first)) || text.includes(String.fromCharCode(first + 1))) {
      first += 2;
      if (first > LAST_MARK) throw new TemplateFailure("the chat has all private characters of Unicode");
    }
    const [begin, end] = [String.fromCharCode(first), String.fromCharCode(first + 1)];
    const marked = this.#run(inputs, [begin, end]);
    const spans: TextSpan[] = [];
    let plain = "";
    let start: number | undefined;
    for (const part of marked.split(new RegExp(`([${begin}${end}])`))) {
      if (part === begin) start = plain.length;
      else if (part !== end) plain += part;
      else if (start !== undefined) {
        spans.push({ start, end: plain.length });
        start = undefined;
      }
    }
    if (plain === text && start === undefined) return { text, spans };
    throw new TemplateFailure(
      "what lies between {% generation %} and {% endgeneration %} is changed or used again behind them",
    );
  }

  #run(
    { messages, tools, addGenerationPrompt = false, variables = {} }: TemplateInputs,
    marks: readonly string[],
  ): string {
    const environment = new Environment();
    const given: Record<string, unknown> = {
      ...CONSTANTS,
      ...FUNCTIONS,
      ...this.tokens,
      ...Object.fromEntries(MARKS.map((name, i) => [name, marks[i]])),
      documents: null,
      ...variables,
      messages,
      tools: tools ?? null,
      add_generation_prompt: addGenerationPrompt,
    };
    for (const [name, value] of Object.entries(given)) environment.set(name, value);
    let value: unknown;
    try {
      ({ value } = new PythonInterpreter(environment).run(this.#parsed));
    } catch (cause) {
      if (cause instanceof TemplateFailure) throw cause;
      const detail = cause instanceof Error ? cause.message : String(cause);
      throw new TemplateFailure(`it fails: ${detail}`, { cause });
    }
    if (typeof value === "string") return value;
    throw new TemplateFailure("it gives no text");
  }
}

/** The functions and constants that every template may use. */
const CONSTANTS: Readonly<Record<string, unknown>> = {
  true: true,
  false: false,
  none: null,
  True: true,
  False: false,
  None: null,
  raise_exception: (message: unknown): never => {
    throw new TemplateFailure(`one that it refuses: ${String(message)}`);
  },
  strftime_now: (format: unknown): string => strftime(new Date(), String(format)),
  range,
};

/** Python's `range`, as a list. */
function range(...given: readonly unknown[]): number[] {
  // A keyword argument would come as an object.
  const numbers = given.map((one) => {
    if (typeof one === "number" && Number.isInteger(one)) return one;
    throw new TemplateFailure(`it fails: range() takes integers, got ${String(one)}`);
  });
  const [first = 0, second, step = 1] = numbers;
  const [start, stop] = second === undefined ? [0, first] : [first, second];
  if (step === 0) throw new TemplateFailure("it fails: range() takes steps other than 0");
  return Array.from({ length: Math.max(0, Math.ceil((stop - start) / step)) }, (_, i) => start + i * step);
}
