/**
 * Rows of multiple choice: a text, the choices that may follow it, and the right one.
 *
 * @module
 */
import { isJsonObject, kindOf } from "../../json.ts";
import { countOf } from "../../words.ts";
import { type Row, rowError, type RowPlace } from "../rows/row.ts";

/** A question with its choices. */
export interface ChoiceRow extends RowPlace {
  /** The text before each choice; it may be empty. */
  readonly context: string;
  /** At least two texts, none of them empty. */
  readonly choices: readonly string[];
  /** Place of the right choice. */
  readonly answer: number;
}

/** Columns of which a row has one, the text before the choices. */
const CONTEXTS = ["question", "prompt", "context"] as const;

/** The column by which rows of multiple choice are known. */
export const CHOICES = "choices";

/** The columns that are read. */
export const CHOICE_COLUMNS: readonly string[] = [...CONTEXTS, CHOICES, "answer"];

/** Makes the error for a row. */
type Refuse = (expected: string, got: string) => Error;

/**
 * A row's question.
 *
 * @param name what errors call the data
 * @throws {ConfigError} naming file and line of a row without a text, with fewer than two choices, or whose answer is none of them
 */
export function choiceRow(row: Row, name: string): ChoiceRow {
  const { file, line, value } = row;
  const refuse: Refuse = (expected, got) => rowError(name, row, { expected, got });
  const given = CONTEXTS.filter((key) => value[key] !== undefined && value[key] !== null);
  const [key] = given;
  if (key === undefined || given.length > 1) {
    const expected = `one of the columns ${CONTEXTS.map((one) => `"${one}"`).join(", ")}, the text before the choices`;
    const columns = key === undefined ? Object.keys(value).slice(0, 20) : given;
    throw refuse(expected, columns.map((one) => JSON.stringify(one)).join(" and "));
  }
  const choices = choicesOf(value[CHOICES], refuse);
  const context = textOf(value[key], `under "${key}"`, refuse);
  return { file, line, context, choices, answer: answerOf(value["answer"], choices, refuse) };
}

function choicesOf(value: unknown, refuse: Refuse): readonly string[] {
  const expected = `a list of at least two texts under "${CHOICES}"`;
  if (!Array.isArray(value)) {
    const isParted = isJsonObject(value) && Array.isArray(value["text"]);
    throw refuse(expected, isParted ? `an object with "text": take its list as "${CHOICES}"` : kindOf(value));
  }
  if (value.length < 2) throw refuse(expected, countOf(value.length, "text"));
  return value.map((choice: unknown, i) => {
    const text = textOf(choice, `as choice ${i}, counted from 0`, refuse);
    if (text === "") throw refuse("a text of at least one character in each choice", `"" as choice ${i}`);
    return text;
  });
}

function textOf(value: unknown, where: string, refuse: Refuse): string {
  if (typeof value !== "string") throw refuse(`a text ${where}`, kindOf(value));
  if (!value.isWellFormed()) throw refuse(`valid Unicode text ${where}`, "half of a surrogate pair");
  return value;
}

/** The place of the right choice: given by its number from 0, by its text, or by its letter. The text counts before the letter. */
function answerOf(value: unknown, choices: readonly string[], refuse: Refuse): number {
  const last = choices.length - 1;
  const letters = choices.length > 26 ? "" : `, a letter from "A" to "${letterOf(last)}"`;
  const expected = `a number from 0 to ${last}${letters}, or the text of a choice under "answer"`;
  if (typeof value === "number") {
    if (Number.isInteger(value) && value >= 0 && value <= last) return value;
    throw refuse(expected, String(value));
  }
  if (typeof value !== "string") throw refuse(expected, kindOf(value));
  const same = choices.flatMap((choice, i) => choice === value ? [i] : []);
  const [place] = same;
  if (place !== undefined && same.length === 1) return place;
  if (place !== undefined) throw refuse(expected, `${JSON.stringify(value)}, which choices ${same.join(" and ")} are`);
  const letter = /^[A-Z]$/i.test(value) ? value.toUpperCase().charCodeAt(0) - FIRST_LETTER : -1;
  if (letter >= 0 && letter <= last) return letter;
  throw refuse(expected, JSON.stringify(value));
}

const FIRST_LETTER = "A".charCodeAt(0);

function letterOf(place: number): string {
  return String.fromCharCode(FIRST_LETTER + place);
}
