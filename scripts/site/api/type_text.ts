/**
 * Types of `deno doc --json` as TypeScript.
 *
 * @module
 */
import * as z from "zod";

/** A type. */
export interface TsType {
  readonly kind: string;
  readonly repr?: string | undefined;
  readonly value?: unknown;
}

/** Schema of a type; what it holds is read by {@link typeText}. */
export const tsType: z.ZodType<TsType> = z.looseObject({
  kind: z.string(),
  repr: z.string().optional(),
  value: z.unknown().optional(),
});

const types = z.array(tsType);
const typeRef = z.looseObject({ typeName: z.string(), typeParams: types.nullish() });
const operator = z.looseObject({ operator: z.string(), tsType });
const indexed = z.looseObject({ objType: tsType, indexType: tsType });
const literal = z.looseObject({ kind: z.string(), string: z.string().optional() });
const typeParam = z.looseObject({ name: z.string(), constraint: tsType.optional(), default: tsType.optional() });
const callable = z.looseObject({
  constructor: z.boolean().optional(),
  tsType: tsType.optional(),
  params: z.array(z.unknown()).default([]),
  typeParams: z.array(z.unknown()).default([]),
});
const mapped = z.looseObject({
  readonly: z.unknown().optional(),
  optional: z.unknown().optional(),
  typeParam,
  nameType: tsType.nullish(),
  tsType: tsType.optional(),
});
const conditional = z.looseObject({ checkType: tsType, extendsType: tsType, trueType: tsType, falseType: tsType });
const infer = z.looseObject({ typeParam });
const members = z.looseObject({
  properties: z.array(z.looseObject({
    name: z.string(),
    readonly: z.boolean().optional(),
    optional: z.boolean().optional(),
    tsType: tsType.optional(),
  })).default([]),
  methods: z.array(z.looseObject({ name: z.string(), params: z.array(z.unknown()), returnType: tsType.optional() }))
    .default([]),
});

/** A type as TypeScript. @throws {Error} for a kind that it does not know */
export function typeText({ kind, repr, value }: TsType): string {
  switch (kind) {
    case "keyword":
    case "this":
    case "typePredicate":
      return repr ?? String(value);
    case "typeQuery":
      return `typeof ${String(value)}`;
    case "literal": {
      const of = literal.parse(value);
      return of.kind === "string" ? JSON.stringify(of.string) : repr ?? of.kind;
    }
    case "typeRef": {
      const { typeName, typeParams } = typeRef.parse(value);
      return typeParams == null ? typeName : `${typeName}<${typeParams.map(typeText).join(", ")}>`;
    }
    case "union":
      return types.parse(value).map(typeText).join(" | ");
    case "intersection":
      return types.parse(value).map(typeText).join(" & ");
    case "array":
      return `${typeText(tsType.parse(value))}[]`;
    case "tuple":
      return `[${types.parse(value).map(typeText).join(", ")}]`;
    case "parenthesized":
      return `(${typeText(tsType.parse(value))})`;
    case "optional":
      return `${typeText(tsType.parse(value))}?`;
    case "rest":
      return `...${typeText(tsType.parse(value))}`;
    case "typeOperator": {
      const { operator: word, tsType: of } = operator.parse(value);
      return `${word} ${typeText(of)}`;
    }
    case "indexedAccess": {
      const { objType, indexType } = indexed.parse(value);
      return `${typeText(objType)}[${typeText(indexType)}]`;
    }
    case "fnOrConstructor": {
      const { constructor: isNew, params, typeParams, tsType: result } = callable.parse(value);
      const of = result === undefined ? "unknown" : typeText(result);
      return `${isNew === true ? "new " : ""}${typeParamsText(typeParams)}(${paramsText(params)}) => ${of}`;
    }
    case "typeLiteral":
      return literalText(value);
    case "mapped": {
      const { typeParam: { name, constraint }, nameType, tsType: of, readonly, optional } = mapped.parse(value);
      const renamed = nameType == null ? "" : ` as ${typeText(nameType)}`;
      const key = `[${name} in ${constraint === undefined ? "unknown" : typeText(constraint)}${renamed}]`;
      const marks = [readonly === true ? "readonly " : "", optional === true ? "?" : ""];
      return `{ ${marks[0]}${key}${marks[1]}: ${of === undefined ? "unknown" : typeText(of)} }`;
    }
    case "conditional": {
      const { checkType, extendsType, trueType, falseType } = conditional.parse(value);
      return `${typeText(checkType)} extends ${typeText(extendsType)} ? ${typeText(trueType)} : ${typeText(falseType)}`;
    }
    case "infer":
      return `infer ${infer.parse(value).typeParam.name}`;
    default:
      throw new Error(`the API's pages know no type of kind '${kind}': ${repr ?? ""}`);
  }
}

function literalText(value: unknown): string {
  const { properties, methods } = members.parse(value);
  const parts = [
    ...properties.map(({ name, readonly, optional, tsType: of }) =>
      `${readonly === true ? "readonly " : ""}${name}${optional === true ? "?" : ""}: ${
        of === undefined ? "unknown" : typeText(of)
      }`
    ),
    ...methods.map(({ name, params, returnType }) =>
      `${name}(${paramsText(params)}): ${returnType === undefined ? "unknown" : typeText(returnType)}`
    ),
  ];
  return parts.length === 0 ? "{}" : `{ ${parts.join("; ")} }`;
}

/** The parameters of a type, in their brackets; empty without any. */
export function typeParamsText(params: readonly unknown[]): string {
  if (params.length === 0) return "";
  const shown = params.map((given) => {
    const { name, constraint, default: usual } = typeParam.parse(given);
    return `${name}${constraint === undefined ? "" : ` extends ${typeText(constraint)}`}${
      usual === undefined ? "" : ` = ${typeText(usual)}`
    }`;
  });
  return `<${shown.join(", ")}>`;
}

/** A parameter of a function. */
interface Parameter {
  readonly kind: string;
  readonly name?: string | undefined;
  readonly optional?: boolean | undefined;
  readonly tsType?: TsType | undefined;
  readonly left?: Parameter | undefined;
  readonly arg?: Parameter | undefined;
}

const parameter: z.ZodType<Parameter> = z.lazy(() =>
  z.looseObject({
    kind: z.string(),
    name: z.string().optional(),
    optional: z.boolean().optional(),
    tsType: tsType.optional(),
    left: parameter.optional(),
    arg: parameter.optional(),
  })
);

/** The parameters of a function, between its parentheses. */
export function paramsText(params: readonly unknown[]): string {
  return params.map((given) => parameterText(parameter.parse(given))).join(", ");
}

function parameterText({ kind, name = "options", optional, tsType: type, left, arg }: Parameter): string {
  if (kind === "assign" && left !== undefined) return parameterText({ ...left, optional: true });
  if (kind === "rest" && arg !== undefined) return `...${parameterText({ ...arg, tsType: arg.tsType ?? type })}`;
  return `${name}${optional === true ? "?" : ""}: ${type === undefined ? "unknown" : typeText(type)}`;
}
