/**
 * Questions of a command to a person: on the terminal, or a line of a pipe for each.
 *
 * @module
 */
import process from "node:process";
import { createInterface } from "node:readline";
import type { Question } from "../accelerate/key.ts";
import { ConfigError } from "../errors.ts";

/** A question as it is asked. */
export interface AskedQuestion extends Question {
  /** The possible answers. */
  readonly shown: string;
}

/** Gives the answer to a question. @throws {ConfigError} if the input ends before */
export type Ask = (question: AskedQuestion) => Promise<string>;

/** Asks nothing: the usual answer to each question. */
export const usualAnswers: Ask = ({ usual }) => Promise.resolve(usual);

/** Asks on the terminal, or reads a line of a pipe for each question. @param stack closes the input */
export function asker(stack: DisposableStack, write: (text: string) => void): Ask {
  const reader = createInterface({ input: process.stdin });
  stack.defer(() => reader.close());
  const lines = reader[Symbol.asyncIterator]();
  return async ({ text, shown, usual }) => {
    write(`${text} (${shown}) [${usual}]: `);
    const { value, done } = await lines.next();
    if (done === true) {
      const got = "the end of the input. Give a line for each, or '--defaults'";
      throw new ConfigError([{ path: "answers", expected: `an answer to '${text}'`, got }]);
    }
    return value.trim() === "" ? usual : value.trim();
  };
}
