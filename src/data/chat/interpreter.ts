/**
 * The library's interpreter of Jinja, which adds to texts only what Python adds: `"a" + ["b"]` is an error and no text, so that a list
 * of parts where a template expects a text is refused and not trained on as JSON.
 *
 * @module
 */
import { Interpreter } from "@huggingface/jinja";
import { TemplateFailure } from "./failure.ts";

type Evaluate = Interpreter["evaluate"];
type TemplateStatement = Parameters<Evaluate>[0];
type Value = ReturnType<Evaluate>;

const TEXT = "StringValue";

/** Python's names of kinds of values. */
const NAMES: Readonly<Record<string, string>> = {
  [TEXT]: "str",
  ArrayValue: "list",
  TupleValue: "tuple",
  ObjectValue: "dict",
  IntegerValue: "int",
  FloatValue: "float",
  BooleanValue: "bool",
};

/** Runs templates, with Python's sums of texts. */
export class PythonInterpreter extends Interpreter {
  /** Values of the sum that is being taken; undefined within all else. */
  #operands: Value[] | undefined;

  /** @throws {TemplateFailure} for a sum of a text and a value that is no text */
  override evaluate(statement: TemplateStatement, environment: Parameters<Evaluate>[1]): Value {
    const outer = this.#operands;
    const operands: Value[] | undefined = isSum(statement) ? [] : undefined;
    this.#operands = operands;
    const value = super.evaluate(statement, environment);
    this.#operands = outer;
    const other = value.type === TEXT ? operands?.find(({ type }) => type !== TEXT) : undefined;
    if (other !== undefined) {
      throw new TemplateFailure(
        `it fails: it adds a ${NAMES[other.type] ?? other.type} to a text, which Python refuses`,
      );
    }
    outer?.push(value);
    return value;
  }
}

function isSum(statement: TemplateStatement): boolean {
  if (statement?.type !== "BinaryExpression" || !("operator" in statement)) return false;
  const { operator } = statement;
  return typeof operator === "object" && operator !== null && "value" in operator && operator.value === "+";
}
