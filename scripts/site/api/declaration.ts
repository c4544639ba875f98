/**
 * Declarations as the pages of the API show them.
 *
 * @module
 */
import * as z from "zod";
import { paramsText, tsType, typeParamsText, typeText } from "./type_text.ts";

/** A part of a doc comment. */
export interface DocTag {
  readonly kind: string;
  readonly name?: string | undefined;
  readonly doc?: string | undefined;
  /** Of an error, its class. */
  readonly type?: string | undefined;
}

/** Something with a signature and a doc comment. */
export interface Documented {
  readonly name: string;
  /** TypeScript. */
  readonly signature: string;
  readonly doc: string;
  readonly tags: readonly DocTag[];
}

/** A declaration of a public name. */
export interface Declaration extends Documented {
  readonly kind: string;
  readonly members: readonly Documented[];
}

const jsDoc = z.looseObject({
  doc: z.string().default(""),
  tags: z.array(z.looseObject({
    kind: z.string(),
    name: z.string().optional(),
    doc: z.string().optional(),
    tsType: z.looseObject({ repr: z.string().optional() }).optional(),
  })).default([]),
}).default({ doc: "", tags: [] });

const list = z.array(z.unknown()).default([]);
const callable = z.looseObject({
  params: list,
  returnType: tsType.optional(),
  typeParams: list,
});

const member = z.looseObject({
  name: z.string(),
  jsDoc,
  kind: z.string().optional(),
  accessibility: z.string().optional(),
  isStatic: z.boolean().optional(),
  isAbstract: z.boolean().optional(),
  readonly: z.boolean().optional(),
  optional: z.boolean().optional(),
  tsType: tsType.optional(),
  functionDef: callable.optional(),
  params: list,
  returnType: tsType.optional(),
  typeParams: list,
});

const declaration = z.looseObject({
  kind: z.string(),
  declarationKind: z.string().default("export"),
  jsDoc,
  def: z.looseObject({
    params: list,
    returnType: tsType.optional(),
    typeParams: list,
    tsType: tsType.optional(),
    extends: z.union([z.string(), z.array(tsType)]).nullish(),
    superTypeParams: z.array(tsType).default([]),
    implements: z.array(tsType).default([]),
    isAbstract: z.boolean().default(false),
    constructors: z.array(member).default([]),
    properties: z.array(member).default([]),
    methods: z.array(member).default([]),
  }).optional(),
});

/** The declaration of a name; none for what only refers to another one. */
export function declarationOf(name: string, given: unknown): readonly Declaration[] {
  const { kind, jsDoc: comment, def } = declaration.parse(given);
  if (def === undefined || kind === "reference") return [];
  const params = typeParamsText(def.typeParams);
  const own = { name, kind, ...documented(comment) };
  switch (kind) {
    case "function":
      return [{ ...own, signature: `function ${name}${callText(def)}`, members: [] }];
    case "variable":
      return [{ ...own, signature: `const ${name}: ${typed(def.tsType)}`, members: [] }];
    case "typeAlias":
      return [{ ...own, signature: `type ${name}${params} = ${typed(def.tsType)}`, members: [] }];
    case "interface":
    case "class": {
      const members = [...def.constructors, ...def.properties, ...def.methods].filter(isShown).map(memberOf);
      return [{
        ...own,
        signature: `${def.isAbstract ? "abstract " : ""}${kind} ${name}${params}${above(def)}`,
        members,
      }];
    }
    default:
      throw new Error(`'${name}': the API's pages know no declaration of kind '${kind}'`);
  }
}

/** The types that a class or an interface extends and implements. */
function above(def: NonNullable<z.infer<typeof declaration>["def"]>): string {
  const parents = typeof def.extends === "string"
    ? [def.extends + (def.superTypeParams.length > 0 ? `<${def.superTypeParams.map(typeText).join(", ")}>` : "")]
    : (def.extends ?? []).map(typeText);
  const kept = def.implements.map(typeText);
  return `${parents.length > 0 ? ` extends ${parents.join(", ")}` : ""}${
    kept.length > 0 ? ` implements ${kept.join(", ")}` : ""
  }`;
}

function isShown({ accessibility, jsDoc, name }: z.infer<typeof member>): boolean {
  const isHidden = accessibility === "private" || accessibility === "protected" || name.startsWith("#");
  return !isHidden && jsDoc.tags.every(({ kind }) => kind !== "internal");
}

function memberOf(given: z.infer<typeof member>): Documented {
  const { name, jsDoc: comment, kind, functionDef, isStatic, isAbstract, optional } = given;
  const words = `${isStatic === true ? "static " : ""}${isAbstract === true ? "abstract " : ""}`;
  const mark = optional === true ? "?" : "";
  const from = { name, ...documented(comment) };
  if (name === "constructor") return { ...from, signature: `new${callText(given)}` };
  if (kind === "getter") return { ...from, signature: `${words}readonly ${name}: ${typed(functionDef?.returnType)}` };
  if (kind === "setter") return { ...from, signature: `${words}set ${name}${callText(functionDef ?? given)}` };
  if (kind === "method") return { ...from, signature: `${words}${name}${mark}${callText(functionDef ?? given)}` };
  const readonly = given.readonly === true ? "readonly " : "";
  return { ...from, signature: `${words}${readonly}${name}${mark}: ${typed(given.tsType)}` };
}

function callText({ typeParams, params, returnType }: z.infer<typeof callable>): string {
  const result = returnType === undefined ? "" : `: ${typeText(returnType)}`;
  return `${typeParamsText(typeParams)}(${paramsText(params)})${result}`;
}

function typed(type: z.infer<typeof tsType> | undefined): string {
  return type === undefined ? "unknown" : typeText(type);
}

function documented({ doc, tags }: z.infer<typeof jsDoc>): { readonly doc: string; readonly tags: readonly DocTag[] } {
  return { doc, tags: tags.map(({ kind, name, doc, tsType }) => ({ kind, name, doc, type: tsType?.repr })) };
}
